// Package report writes results as text, JSON and Markdown, and their time series as CSV.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/compare"
	"github.com/larder-io/larder/bench/thresholds"
)

// Report has all results of one run of a program.
type Report struct {
	// SchemaVersion is the version of the JSON that was read or written.
	SchemaVersion int `json:"schemaVersion"`
	// Title is the headline. Command, Machine and Date describe the run.
	Title   string    `json:"title"`
	Command string    `json:"command"`
	Machine string    `json:"machine"`
	Date    time.Time `json:"date"`
	// Results are the results of single workloads. Pairs means that they come from several servers and have
	// names of the form "SERVER: WORK".
	Results []*bench.Result `json:"results,omitempty"`
	Pairs   bool            `json:"-"`
	// Cases are the checked thresholds, Changes the differences from an earlier run.
	Cases   []thresholds.Case   `json:"thresholds,omitempty"`
	Changes []thresholds.Change `json:"baseline,omitempty"`
	// Table is a comparison, nil for none.
	Table *compare.Table `json:"table,omitempty"`
}

// SchemaVersion is the version of the JSON. It increases when a field is removed or changes its meaning, but not when
// a field is added.
const SchemaVersion = 4

// All returns the results of all rounds, also those in the table.
func (r *Report) All() []*bench.Result {
	if r.Table == nil {
		return r.Results
	}
	return append(r.Table.EachRound(), r.Results...)
}

// Read reads the output of Report.JSON.
func Read(from io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("report: not JSON from larder-bench: %w", err)
	}
	if r.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("report: the JSON has schema version %d, want %d: measure again with this larder-bench", r.SchemaVersion, SchemaVersion)
	}
	return r, nil
}

// JSON writes the report as JSON.
func (r *Report) JSON(w io.Writer) error {
	r.SchemaVersion = SchemaVersion
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Judged returns the results that thresholds apply to: in a comparison, Larder's.
func (r *Report) Judged() []*bench.Result {
	if r.Table == nil {
		return r.Results
	}
	return r.Table.Larder()
}

// Markdown writes the table that compares servers.
func (r *Report) Markdown(w io.Writer) error {
	head, table := fmt.Sprintf("%s, %s.", r.Date.Format(time.DateOnly), r.Machine), ""
	if r.Table != nil {
		head, table = head+" "+r.Table.Servers, r.Table.Markdown()
	} else {
		table = pairs(r.Results)
	}
	if _, err := fmt.Fprintf(w, "%s\n\n    %s\n\n%s", head, r.Command, table); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	if r.Table != nil || r.Pairs {
		if err := r.Markdown(w); err != nil {
			return err
		}
	}
	if len(r.Results) > 0 && !r.Pairs {
		if err := bench.WriteText(w, r.Results...); err != nil {
			return err
		}
	}
	if len(r.Changes) > 0 {
		return thresholds.WriteChanges(w, r.Changes)
	}
	return nil
}
