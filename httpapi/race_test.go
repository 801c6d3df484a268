//go:build race

package httpapi

const raceDetector = true
