package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/compare"
	"github.com/larder-io/larder/bench/definitions"
	"github.com/larder-io/larder/bench/starts"
	"github.com/larder-io/larder/bench/thresholds"
)

// Report is all that one run of a program found.
type Report struct {
	// SchemaVersion is the version of the JSON that was read or written.
	SchemaVersion int `json:"schemaVersion"`
	// Title heads the report. Command, Machine and Date say how it came about.
	Title   string    `json:"title"`
	Command string    `json:"command"`
	Machine string    `json:"machine"`
	Date    time.Time `json:"date"`
	// Results are the results of single workloads.
	Results []*bench.Result `json:"results,omitempty"`
	// Cases are the bounds that results were held against, Changes what differs from an
	// earlier run.
	Cases   []thresholds.Case   `json:"thresholds,omitempty"`
	Changes []thresholds.Change `json:"baseline,omitempty"`
	// Table is a comparison, nil for none.
	Table *compare.Table `json:"table,omitempty"`
	// Cluster is of simulated clusters, nil for none.
	Cluster *cluster.Table `json:"cluster,omitempty"`
	// Definitions is of what CRDs cost, nil for none.
	Definitions *definitions.Table `json:"definitions,omitempty"`
	// Starts is of starts on stored objects, nil for none.
	Starts *starts.Table `json:"starts,omitempty"`
}

// SchemaVersion is the version of the JSON. It grows when a field changes its meaning or goes;
// fields may be added without.
const SchemaVersion = 1

// All returns the results of all rounds, also those in the table.
func (r *Report) All() []*bench.Result {
	if r.Table == nil {
		return r.Results
	}
	return append(r.Table.EachRound(), r.Results...)
}

// Read reads a report that JSON has written.
func Read(from io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("report: this is no JSON of larder-bench: %w", err)
	}
	if r.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("report: the JSON has schema version %d, want %d: measure again with this larder-bench", r.SchemaVersion, SchemaVersion)
	}
	return r, nil
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	r.SchemaVersion = SchemaVersion
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	tables := ""
	if r.Table != nil {
		tables += r.Table.Markdown()
	}
	if r.Cluster != nil {
		tables += r.Cluster.Markdown()
	}
	if r.Definitions != nil {
		tables += r.Definitions.Markdown()
	}
	if r.Starts != nil {
		tables += r.Starts.Markdown()
	}
	if _, err := io.WriteString(w, tables); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if len(r.Results) > 0 {
		if err := bench.WriteText(w, r.Results...); err != nil {
			return err
		}
	}
	if len(r.Changes) > 0 {
		if err := thresholds.WriteChanges(w, r.Changes); err != nil {
			return err
		}
	}
	return nil
}
