package apimetrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// What other packages count is declared here too, so that all names of this server's own
// are in one place. They give functions, which are called when a [Page] is asked for.

// Connections tells of the connections of a server.
type Connections struct {
	Open   func() float64
	Limits map[string]ConnectionLimit // by what they are of
}

// ConnectionLimit tells of a limit of connections, and of what was done for it.
type ConnectionLimit struct {
	Limit              float64
	Refused, Displaced func() float64
}

// NewConnections reports connections.
func NewConnections(c Connections) []prometheus.Collector {
	all := []prometheus.Collector{gauge("larder_connections", "Number of open connections.", nil, c.Open)}
	for of, limit := range c.Limits {
		all = append(all,
			gauge("larder_connections_limit", "Number of connections that may be open, in all or from one address.",
				prometheus.Labels{"of": of}, func() float64 { return limit.Limit }),
			counter("larder_connections_refused_total", "Counter of connections that were closed at once, by the limit that was reached.",
				prometheus.Labels{"limit": of}, limit.Refused),
			counter("larder_connections_displaced_total", "Counter of connections without a request that were closed to make room for others, by the limit that was reached.",
				prometheus.Labels{"limit": of}, limit.Displaced))
	}
	return all
}

// NewRevokedWatches reports how many watches ended for want of a right.
func NewRevokedWatches(credential, permission func() float64) []prometheus.Collector {
	var all []prometheus.Collector
	for lost, ended := range map[string]func() float64{"credential": credential, "permission": permission} {
		all = append(all, counter("larder_watches_revoked_total",
			"Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.",
			prometheus.Labels{"lost": lost}, ended))
	}
	return all
}

// NewCompressedLists reports what is kept of compressed lists, and how much of them could
// not be sent again.
func NewCompressedLists(bytes, made func() float64) []prometheus.Collector {
	return []prometheus.Collector{
		gauge("larder_compressed_list_bytes", "Bytes of compressed pieces of lists, kept to be sent again.", nil, bytes),
		counter("larder_compressed_list_pieces_total", "Counter of pieces of lists that were compressed.", nil, made),
	}
}

// NewRevisionReads reports how often the store was asked for its revision.
func NewRevisionReads(reads func() float64) prometheus.Collector {
	return counter("larder_revision_reads_total",
		"Counter of linearizable reads of etcd's revision. Each serves all consistent reads that waited for it.", nil, reads)
}

func gauge(name, help string, labels prometheus.Labels, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read)
}

func counter(name, help string, labels prometheus.Labels, read func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, read)
}
