// Package transcode turns the protobuf message of a Kubernetes object into the JSON
// that upstream writes for it, without making the object.
//
// # Model
//
// A [Planner] reads the Go type of a kind once, its protobuf and json tags, and makes a
// [Plan] of it: for each message the fields by number, and the same fields in the order
// in which encoding/json writes them. [Plan.Append] walks a message by its plan: where both
// orders are the same it writes each field as it reads it, elsewhere it notes where each field
// lies, then writes what is there in the order of the JSON.
//
// Looking for what must be escaped is nearly half of a walk (L1). Append reports that a message is
// plain, which is that nothing was found; [Plan.AppendPlain] then need not look again.
//
// Objects that are made alike differ in names, addresses, times and the like. Both keep a
// few messages and what they wrote for them, stencils: a message that differs from one of them
// only within texts and times is not walked over, but written as a copy of what was written
// for that one, with its own texts and times in their places. A stencil learns which of these are
// others at all: what lies between them is compared as one. Where no messages are alike, few
// become stencils. [Result.Copied] says that a message was written so.
//
// # Guarantees
//
// Append appends byte for byte what json.Marshal writes for the object that the generated
// Unmarshal makes of the message. It takes messages as upstream's generated code writes
// them: fields in the order of their numbers, each but lists and maps once, keys of maps in
// order. For any other message, for one whose object json.Marshal refuses, and for one that
// is malformed it returns [ErrUnusual], or appends what json.Marshal would write, never
// anything else. Fields that the type does not have are skipped, as Unmarshal does.
//
// Types with a MarshalJSON of their own (times, quantities and the like) are known by name;
// an unknown type with such a method, or anything else that a plan cannot express, makes
// [Planner.Plan] fail with [ErrUnsupported].
//
// AppendPlain does the same for messages that are plain. For others it may append what is no
// JSON.
//
// Append and AppendPlain allocate nothing beside dst for messages of the usual kind.
//
// # Locks and goroutines
//
// A Planner has a mutex for making plans. A Plan is immutable and may be shared.
//
// # Bytes
//
// Messages are read. Stencils are copies, of messages of at most 16 KiB. They belong to a walker,
// of which there is one for each goroutine that writes, and go with it when the garbage collector
// empties the pool of walkers: about 1 MB of pods for each processor.
package transcode
