// Package thresholds compares results with bounds, and with the results of an earlier run.
//
// A difference from the earlier run counts only if it is significant by the Mann-Whitney U test. A bound that cannot be
// checked is an error: no result has its name, or its figure was not measured. So is a comparison with too few rounds.
//
// The package keeps no state and does no I/O.
package thresholds
