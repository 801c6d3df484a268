package main

import (
	"io"
	"regexp"
)

// uncommon passes on the lines of a log but those that belong to every start and end.
type uncommon struct{ io.Writer }

// common is what upstream's controllers warn of when this server enters itself into
// the endpoints of the kubernetes service and removes itself again, and when they hear
// of that service's making before they hear of its address's.
var common = regexp.MustCompile(`Resetting endpoints for master service "kubernetes" to ` +
	`|for Service default/kubernetes is not allocated; repairing`)

// Write takes one line.
func (u uncommon) Write(line []byte) (int, error) {
	if common.Match(line) {
		return len(line), nil
	}
	return u.Writer.Write(line)
}
