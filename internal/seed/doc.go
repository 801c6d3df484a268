// Package seed pins modules until their importers exist.
package seed
