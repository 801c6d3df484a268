// Package stages plans how load changes with time.
//
// A [Plan] is a sequence of stages. Each stage has a length and a level at its beginning and at
// its end; the level changes linearly. The level of an open plan is a rate, which sets
// when each operation is due, whatever the server does. The level of a closed plan is a number of
// clients. A client begins its next operation when its last one has ended.
//
// A Plan is immutable and safe for concurrent use.
package stages
