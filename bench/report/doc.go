// Package report writes results as text, as JSON, and each second of them as CSV.
package report
