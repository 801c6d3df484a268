//go:build race

package proctest

// RaceDetector reports whether the program was built with the race detector.
const RaceDetector = true
