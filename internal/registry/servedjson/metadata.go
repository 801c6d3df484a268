package servedjson

import "time"

// root walks a whole object, and stores the positions in d.
func (w *walker) root(s *Schema, d *Document) bool {
	properties, seen := s.root.properties, 0
	ok := w.members(func(key []byte) bool {
		switch string(key) {
		case "apiVersion":
			seen++
			return w.literal(s.head)
		case "kind":
			seen++
			return w.literal(s.kind)
		case "metadata":
			seen++
			return w.metadata(d)
		}
		below, rest, ok := s.root.member(properties, key)
		properties = rest
		return ok && w.value(below)
	})
	return ok && seen == 3 && complete(properties)
}

// metadata walks metadata that are written as upstream writes an ObjectMeta, without empty fields. It
// rejects metadata without a generation, because reading would add one.
func (w *walker) metadata(d *Document) bool {
	generation := false
	ok := w.members(func(key []byte) bool {
		if string(key) > "resourceVersion" && d.revision.to == 0 {
			from := w.at - len(key) - 3 // before the key's quote
			d.revision, d.before, d.after = span{from, from}, `"resourceVersion":"`, `",`
		}
		from := w.at
		switch string(key) {
		case "annotations":
			return w.texts()
		case "creationTimestamp", "deletionTimestamp":
			return w.time()
		case "deletionGracePeriodSeconds":
			return w.integer()
		case "finalizers":
			return !w.begins("[]") && w.items(w.text)
		case "generateName", "selfLink", "uid":
			return w.filled()
		case "generation":
			generation = true
			return w.peek() != '0' && w.integer()
		case "labels":
			ok := w.texts()
			d.labels = span{from, w.at}
			return ok
		case "managedFields":
			return !w.begins("[]") && w.items(w.managed)
		case "name":
			ok := w.filled()
			d.name = span{from, w.at}
			return ok
		case "namespace":
			ok := w.filled()
			d.namespace = span{from, w.at}
			return ok
		case "ownerReferences":
			return !w.begins("[]") && w.items(w.owner)
		case "resourceVersion":
			ok := w.filled()
			d.revision = span{from + 1, w.at - 1}
			return ok
		}
		return false
	})
	if d.revision.to == 0 {
		from := w.at - 1
		d.revision, d.before, d.after = span{from, from}, `,"resourceVersion":"`, `"`
	}
	return ok && generation
}

// filled walks a string that is not empty.
func (w *walker) filled() bool { return !w.begins(`""`) && w.text() }

// texts walks an object that is not empty, of strings.
func (w *walker) texts() bool {
	return !w.begins("{}") && w.members(func([]byte) bool { return w.text() })
}

// integer walks a number that is an int64.
func (w *walker) integer() bool {
	from := w.at
	return w.number() && integer(w.data[from:w.at])
}

// time walks a time as metav1.Time is written.
func (w *walker) time() bool {
	from := w.at
	if !w.text() {
		return false
	}
	text := string(w.data[from+1 : w.at-1])
	t, err := time.Parse(time.RFC3339, text)
	return err == nil && !t.IsZero() && t.UTC().Format(time.RFC3339) == text
}

// owner walks an OwnerReference. Its required members are written even if they are empty.
func (w *walker) owner() bool {
	required := 0
	return w.members(func(key []byte) bool {
		switch string(key) {
		case "apiVersion", "kind", "name", "uid":
			required++
			return w.text()
		case "blockOwnerDeletion", "controller":
			return w.literal("true") || w.literal("false")
		}
		return false
	}) && required == 4
}

// managed walks a ManagedFieldsEntry.
func (w *walker) managed() bool {
	any := anything()
	return w.members(func(key []byte) bool {
		switch string(key) {
		case "apiVersion", "fieldsType", "manager", "operation", "subresource":
			return w.filled()
		case "fieldsV1":
			return w.object(any)
		case "time":
			return w.time()
		}
		return false
	})
}
