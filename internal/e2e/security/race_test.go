//go:build race

package security

const race = true
