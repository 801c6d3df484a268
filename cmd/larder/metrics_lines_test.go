package main_test

import (
	"testing"
)

// line is a line of the log that tells of a request.
type line struct {
	Keys []string
}

func lines(t *testing.T, log string) map[string]line { return nil }

func (d *metricDifferences) compareLines(stock, larder map[string]line) {}
