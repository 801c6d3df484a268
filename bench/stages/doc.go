// Package stages plans how load changes with time.
//
// A [Plan] is a sequence of stages. Each has a length and a level at its beginning and at
// its end, between which the level goes evenly. The level of an open plan is a rate: it says
// when each operation is due, whatever the server does. The level of a closed plan is a
// number of clients, each of which begins its next operation when its last has ended.
//
// A Plan is a value: it is not changed after it was made, and any goroutine may ask it.
package stages
