// Package thresholds says whether results are good enough: by bounds that are given, and beside
// those of an earlier run.
//
// It keeps no state and does no I/O. What cannot be judged is an error and never a pass: a
// bound on a result that there is not, on what was not measured, or a comparison of too few
// rounds.
package thresholds
