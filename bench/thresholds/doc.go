// Package thresholds compares results with bounds, and with the results of an earlier run.
//
// A difference from the earlier run counts only if the Mann-Whitney U test rules out chance. A bound that cannot be
// checked is an error, never a pass. Reasons are that no result has its name, that its
// figure was not measured, or that there are too few rounds.
//
// The package keeps no state and does no I/O.
package thresholds
