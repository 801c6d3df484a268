package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"time"
)

// The elements of JUnit's XML that are known everywhere.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitProblem `xml:"failure,omitempty"`
		Error   *junitProblem `xml:"error,omitempty"`
	}
	junitProblem struct {
		Message string `xml:"message,attr"`
	}
)

// JUnit writes each bound as a test case, which fails when the bound is crossed. failed is the
// error that ended the run, nil for none: it is a case of its own.
func (r *Report) JUnit(w io.Writer, failed error) error {
	var wall time.Duration
	for _, result := range r.All() {
		if !result.Part {
			wall += result.Wall
		}
	}
	suite := junitSuite{Name: r.Title, Time: fmt.Sprintf("%.3f", wall.Seconds()), Timestamp: r.Date.UTC().Format("2006-01-02T15:04:05")}
	for _, c := range r.Cases {
		out := junitCase{Class: c.Result, Name: c.Bound, Time: "0"}
		if c.Crossed {
			out.Failure = &junitProblem{Message: fmt.Sprintf("%s: %s, but it is %s", c.Result, c.Bound, c.Is)}
			suite.Failures++
		}
		suite.Cases = append(suite.Cases, out)
	}
	if failed != nil {
		suite.Errors++
		suite.Cases = append(suite.Cases, junitCase{Class: r.Title, Name: "run", Time: "0", Error: &junitProblem{Message: failed.Error()}})
	}
	suite.Tests = len(suite.Cases)
	text, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{suite}}, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(text)+"\n")
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
