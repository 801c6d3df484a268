// Package relay tests larder relay as a process in front of another API server.
package relay
