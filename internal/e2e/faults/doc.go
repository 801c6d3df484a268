// Package faults tests what package httpapi/faults promises, against a larder process: each fault over
// HTTP/1.1 and HTTP/2, for built-in and custom resources, in JSON and protobuf; that a seed repeats its
// faults; and that faults find bugs of controllers. It has only tests.
package faults
