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
//
// It begins with klog's own header, which names the source file that logs: clients have
// a say in what follows it at most. An entry is written at once, however many lines it has.
var common = regexp.MustCompile(`\A[WE]\d{4} [\d:.]+ +\d+ (?:` +
	`lease\.go:\d+\] Resetting endpoints for master service "kubernetes" to ` +
	`|repairip\.go:\d+\] "Unhandled Error" err="the ClusterIP \[IPv[46]\]: [\da-f.:]+ for Service default/kubernetes is not allocated; repairing")`)

// Write takes one entry.
func (u uncommon) Write(entry []byte) (int, error) {
	if common.Match(entry) {
		return len(entry), nil
	}
	return u.Writer.Write(entry)
}
