// Package thresholds compares results with bounds, and with the results of an earlier run.
//
// A difference from the earlier run counts only if the Mann-Whitney U test says that it is not
// chance. A bound that cannot be checked is an error and never a pass: no result has its name, its
// figure was not measured, or there are too few rounds.
//
// The package keeps no state and does no I/O.
package thresholds
