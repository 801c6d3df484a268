package reads

// Serve answers x, a GET or LIST of i, which has a view, and reports whether it did.
func (x *Read) Serve(i *Resource) bool {
	switch x.Verb {
	case "get":
		x.get(i)
	case "list":
		x.list(i)
	default:
		return false
	}
	return true
}
