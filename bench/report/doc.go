// Package report shows results: as text, as JSON, and as one HTML file with plots
// that needs nothing beside itself and reads well in light and dark.
package report
