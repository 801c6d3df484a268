// Package release tests what is given to others.
package release
