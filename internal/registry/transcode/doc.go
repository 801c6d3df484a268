// Package transcode turns the protobuf message of a Kubernetes object into the JSON that upstream writes
// for it, without decoding the object.
//
// # Model
//
// A [Planner] reads the Go type of a kind once, with its protobuf and json tags, and makes a [Plan]: for each message
// the fields by number, and the same fields in the order of encoding/json. [Plan.Append] records the position of each
// field of a message, and then writes the fields in the order of the JSON.
//
// Objects of one workload differ mostly in names, addresses and times. Append keeps a few messages with their JSON,
// called templates. If a message differs from a template only within strings and times, its JSON is a copy of the
// template's JSON with these replaced (L21). A template records which strings and times have ever differed, and
// compares the other bytes in large blocks. If templates are rarely used, few messages become templates.
//
// # Guarantees
//
// Append appends exactly the JSON that json.Marshal writes for the decoded object. It accepts messages as upstream's
// generated code writes them: fields ordered by number, all except lists and maps once, keys of maps sorted. For any
// other message, and if json.Marshal would fail, it may return [ErrUnusual]. Like Unmarshal, it skips fields that the
// type does not have.
//
// A plan supports certain types with a MarshalJSON method, such as times and quantities. For any other type
// with such a method, [Planner.Plan] fails with [ErrUnsupported].
//
// Append usually allocates only dst.
//
// # Locks and goroutines
//
// A Planner has a mutex for making plans, which is a leaf. A Plan is immutable and may be shared. There are no
// goroutines.
//
// # Bytes
//
// Messages are only read. Templates are copies of messages of at most 16 KiB. They belong to pooled walkers, one for
// each goroutine that writes: about 1 MB of pods for each processor. The garbage collector frees them with the pool.
package transcode
