// Package fields makes it cheap to find out which fields of an object a write changed.
//
// Kubernetes records in metadata.managedFields who set which field. To keep that record,
// upstream's field manager turns the stored and the new object into values of
// structured-merge-diff, checks both against their schema, and walks both from top to
// bottom: for a pod whose status changes, most of the time goes into its spec, which is the
// same on both sides.
//
// [NewManager] gives the field manager values that know which Go object they are of:
//
//   - Two such values are compared field by field, and where reflect.DeepEqual finds no
//     difference the walk does not descend. Equal values have no fields that were added,
//     modified or removed, so that the result is the same; values that differ for
//     reflect.DeepEqual alone, a nil slice and an empty one for example, are walked as before.
//   - They know their version, where upstream makes a map of the whole object to read it. The
//     map is made when the object is converted to another version, which is seldom.
//   - They are not checked against the schema: an object of a built-in Go type has the shape
//     that its schema, which is made from that type, asks for. Where it can differ, in items of
//     lists without the fields that key them and in fields of features that are switched off,
//     objects are looked at, and those that do differ go upstream's way.
//
// What a client applies is a map, not an object of a Go type, and it is checked as before.
//
// Two more things spare writes what upstream does again and again. [Creations] remember the
// managedFields of created objects by their shape: which fields there are, and the keys of lists and
// maps. [Updates] remember what became of managedFields by what they were, by who wrote and by the
// shape of what differs.
//
// A manager may be used by any number of goroutines. Its values share the memory of the
// objects that they are made from and are as safe to read as these are; they are never
// written to.
package managedfields
