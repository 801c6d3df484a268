// Package stages plans how load changes with time.
//
// A [Plan] is a sequence of stages. Each stage has a length and a level at its beginning and at
// its end; the level changes evenly in between. The level of an open plan is a rate, which says
// when each operation is due, whatever the server does. The level of a closed plan is a number of
// clients. A client begins its next operation when its last one has ended.
//
// A Plan does not change after it was made; any goroutine may use it.
package stages
