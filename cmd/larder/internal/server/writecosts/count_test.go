package writecosts

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
)

// labelsCounted is the number of labels of the objects whose encodes, decodes and copies are counted. No
// other map of an object has about as many keys, so that allocations of a few sizes identify the
// operation. Every decode and every copy of the object allocates the table of such a map once. Every
// encode allocates a slice to sort the keys once: the generated encoders of protobuf, encoding/json and
// our encoder of custom resources. In a map of an object's fields, managedFields name all labels again;
// these are allocated as an item of a list.
const (
	labelsCounted = 40

	tableSize = 64 / 8 * (8 + 8*32) // of 64 slots in groups of 8: a byte of control each, and two words of two values
	keysSize  = labelsCounted * 16  // protobuf's strings
	pairsSize = labelsCounted * 40  // a reflect.Value and a string
	roomSize  = 64 * 32             // the final size of a slice in internal/registry/servedjson's encoder: a string and an interface for each key
)

// work is the work of a server for some writes.
type work struct {
	Goroutines, Bytes, Objects uint64
	Encodes, Decodes           int64
	// Copies are deep copies, Conversions those between a typed object and a map of its fields.
	Copies, Conversions int64
	// Sites counts where each of those happened, by call stacks with the caller last.
	Sites map[string]int64
}

// Commands to a server that counts.
const (
	countTotals   = "totals"   // returns the totals of the process
	countProfile  = "profile"  // starts to record all allocations
	countProfiled = "profiled" // returns the work recorded since countProfile
)

// serveCounts executes commands until the end of the input, and writes a work in response to each.
func serveCounts(commands io.Reader, counts io.Writer) error {
	before := make(map[allocation]int64)
	for lines := bufio.NewScanner(commands); lines.Scan(); {
		var w work
		switch lines.Text() {
		case countTotals:
			w.readTotals()
		case countProfile:
			runtime.MemProfileRate = 1
			before = allocations()
		case countProfiled:
			runtime.MemProfileRate = 0
			for a, n := range allocations() {
				w.add(a, n-before[a])
			}
		}
		if err := json.NewEncoder(counts).Encode(w); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) readTotals() {
	samples := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}}
	metrics.Read(samples)
	w.Goroutines, w.Bytes, w.Objects = samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
}

// stackDepth is how many frames of a stack are recorded.
const stackDepth = 32

// allocation is all allocations of one size on one stack.
type allocation struct {
	size  int64
	stack [stackDepth]uintptr
}

// allocations returns the number of each while all were recorded.
func allocations() map[allocation]int64 {
	const cycles = 2 // the profile lacks the allocations since the last two garbage collections
	for range cycles {
		runtime.GC()
	}
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, true); !ok; {
		records = make([]runtime.MemProfileRecord, n+1000)
		n, ok = runtime.MemProfile(records, true)
		records = records[:min(n, len(records))]
	}
	counts := make(map[allocation]int64)
	sizes := []int64{sizeClass(tableSize), sizeClass(keysSize), sizeClass(pairsSize), sizeClass(roomSize)}
	for _, r := range records {
		if r.AllocObjects > 0 && slices.Contains(sizes, r.AllocBytes/r.AllocObjects) {
			counts[allocation{r.AllocBytes / r.AllocObjects, r.Stack0}] += r.AllocObjects
		}
	}
	return counts
}

// Functions by their kind. The one nearest to an allocation decides.
var (
	runtimes = regexp.MustCompile(`^(internal/)?runtime[./]|^reflect\.`)
	copying  = regexp.MustCompile(`[dD]eepCopy`)
	turning  = regexp.MustCompile(`[tT]oUnstructured|[fF]romUnstructured`)
	items    = regexp.MustCompile(`\.(array|list|slice)(Interface|Encoder\.encode|FromUnstructured|ToUnstructured)?$`)
	typing   = regexp.MustCompile(`structured-merge-diff`) // works on managedFields, and on parts for their sake
	decoding = regexp.MustCompile(`[uU]nmarshal|[dD]ecode|yaml`)
	encoding = regexp.MustCompile(`\(\*ObjectMeta\)\.MarshalTo|mapEncoder\.encode|shape\.\(\*encoder\)\.object`)
)

// add counts n allocations if labelsCounted describes them.
func (w *work) add(a allocation, n int64) {
	if n == 0 {
		return
	}
	names, ofMap := a.names()
	if slices.ContainsFunc(names, typing.MatchString) {
		return
	}
	for i, name := range names {
		if items.MatchString(name) || copying.MatchString(name) && nested(names[i:]) {
			return
		}
	}
	if !ofMap {
		if len(names) > 0 && encoding.MatchString(names[0]) {
			w.count(&w.Encodes, names, n)
		}
		return
	}
	for _, name := range names {
		if counter := w.made(name); counter != nil {
			w.count(counter, names, n)
			return
		}
	}
}

// nested reports whether a copied value is nested deeper in a map of an object's fields than labels are.
func nested(names []string) bool {
	const deep = 4 // the object, its metadata, its labels are three
	return len(names) >= deep && !slices.ContainsFunc(names[:deep], func(name string) bool { return !strings.HasSuffix(name, ".DeepCopyJSONValue") })
}

// made returns the counter of the objects that the function makes, nil if it makes none.
func (w *work) made(function string) *int64 {
	switch {
	case copying.MatchString(function):
		return &w.Copies
	case turning.MatchString(function):
		return &w.Conversions
	case decoding.MatchString(function):
		return &w.Decodes
	}
	return nil
}

func (w *work) count(counter *int64, names []string, n int64) {
	*counter += n
	what := map[*int64]string{&w.Copies: "copies", &w.Conversions: "conversions", &w.Decodes: "decodes", &w.Encodes: "encodes"}[counter]
	if w.Sites == nil {
		w.Sites = make(map[string]int64)
	}
	for i, name := range names {
		names[i] = name[strings.LastIndexByte(name, '/')+1:]
	}
	w.Sites[what+": "+strings.Join(names, " < ")] += n
}

// names returns the names of the functions on the stack, without the runtime's. ofMap reports whether the runtime was
// building a map.
func (a *allocation) names() (names []string, ofMap bool) {
	depth := 0
	for depth < len(a.stack) && a.stack[depth] != 0 {
		depth++
	}
	for frames := runtime.CallersFrames(a.stack[:depth]); ; {
		frame, more := frames.Next()
		if !runtimes.MatchString(frame.Function) {
			names = append(names, frame.Function)
		} else if len(names) == 0 && strings.HasPrefix(frame.Function, "internal/runtime/maps.") {
			ofMap = a.size == sizeClass(tableSize)
		}
		if !more {
			return names, ofMap
		}
	}
}

// sizeClass is the size that the allocator rounds n bytes with pointers up to.
func sizeClass(n int) int64 {
	const header = 8
	return int64(cap(append([]byte(nil), make([]byte, n+header)...)))
}
