package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind names an anomaly. The upper-case names are Adya's.
type Kind uint8

const (
	// LostWrite: a committed append is missing where later results prove that
	// it should be.
	LostWrite Kind = iota
	// LostUpdate: a transaction wrote a key on the basis of a version that
	// another one had replaced in between.
	LostUpdate
	// Phantom: a scan missed the creation, or the deletion, of a key in its
	// range; the cycle has a dependency on what a scan did not return.
	Phantom
	// FracturedRead: a transaction saw one effect of another and missed
	// another effect of the same.
	FracturedRead
	// ReadSkew: a transaction saw the effects of one transaction and missed
	// those of an earlier one.
	ReadSkew
	// WriteSkew: two transactions each missed what the other wrote.
	WriteSkew
	// StaleRead: a transaction missed what had been written before it was
	// invoked; serializable, but not strictly.
	StaleRead
	// RealTime: a cycle of writes and their readers that contradicts real
	// time, such as reading a value before its append was invoked.
	RealTime
	// G0: a cycle of writes only (dirty write).
	G0
	// G1a: a read saw an append of an aborted transaction.
	G1a
	// G1b: a read saw a state that its writer went on to change (intermediate
	// read).
	G1b
	// G1c: a cycle of writes and reads of them (circular information flow).
	G1c
	// GSingle: a cycle with exactly one anti-dependency.
	GSingle
	// G2Item: a cycle with several anti-dependencies, none from a scan.
	G2Item
	// G2: a cycle with several anti-dependencies, one of them from a scan.
	G2
	// Internal: a transaction's results contradict its own earlier ones: it
	// did not find its own append, or one key changed between two reads.
	Internal
	// Duplicate: a list holds a value twice.
	Duplicate
	// IncompatibleOrder: two lists of a key are no prefixes of one another, or
	// a list has a transaction's own appends in the wrong order.
	IncompatibleOrder
	// Unwritten: a list holds a value that nothing appended.
	Unwritten
	// ScanOrder: a scan returned rows out of order or outside its range.
	ScanOrder
)

var kindNames = [...]string{
	LostWrite: "lost write", LostUpdate: "lost update", Phantom: "phantom", FracturedRead: "fractured read",
	ReadSkew: "read skew", WriteSkew: "write skew", StaleRead: "stale read", RealTime: "real-time violation",
	G0: "G0", G1a: "G1a", G1b: "G1b", G1c: "G1c", GSingle: "G-single", G2Item: "G2-item", G2: "G2",
	Internal: "internal inconsistency", Duplicate: "duplicate", IncompatibleOrder: "incompatible order",
	Unwritten: "unwritten value", ScanOrder: "scan out of order",
}

// String returns the name as reports print it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// EdgeKind is the reason why one transaction must precede another.
type EdgeKind uint8

const (
	// WW: the second overwrote what the first wrote.
	WW EdgeKind = iota
	// WR: the second read what the first wrote.
	WR
	// RW: the first read what the second overwrote (anti-dependency).
	RW
	// ScanRW: an RW from a scan that proves a key absent which the second
	// created, or finds one that the second deleted.
	ScanRW
	// LostRW: an RW to an append that no read ever saw.
	LostRW
	// LostScanRW: a ScanRW to an append that no read ever saw.
	LostScanRW
	// ProcessOrder: one process ran the first before the second.
	ProcessOrder
	// RealTimeOrder: the first completed before the second was invoked.
	RealTimeOrder

	edgeKindCount
)

var edgeNames = [...]string{
	WW: "ww", WR: "wr", RW: "rw", ScanRW: "rw(scan)", LostRW: "rw(lost)", LostScanRW: "rw(scan, lost)",
	ProcessOrder: "process", RealTimeOrder: "real-time",
}

// String returns the name as reports print it.
func (k EdgeKind) String() string {
	if int(k) < len(edgeNames) {
		return edgeNames[k]
	}
	return fmt.Sprintf("edge(%d)", uint8(k))
}

// Edge is one step of a cycle.
type Edge struct {
	From, To TxnID
	Kind     EdgeKind
	Why      string // the results that show it
}

// Anomaly is one violation found.
type Anomaly struct {
	Kinds  []Kind // all names that apply, the most telling one first
	Txns   []Txn  // those involved; of a cycle, in its order
	Edges  []Edge // of a cycle: Edges[i] leads from Txns[i] to the next one, the last back to Txns[0]
	Detail string // the fault, if the anomaly is no cycle
}

// Is reports whether k is among the anomaly's names.
func (a *Anomaly) Is(k Kind) bool { return slices.Contains(a.Kinds, k) }

// String returns several lines that show the anomaly: its names, the
// transactions with their results, and why each precedes the next.
func (a *Anomaly) String() string {
	var b strings.Builder
	for i, k := range a.Kinds {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(k.String())
	}
	if len(a.Edges) > 0 {
		b.WriteString(": " + a.Edges[0].From.String())
		for _, e := range a.Edges {
			fmt.Fprintf(&b, " -%v-> %v", e.Kind, e.To)
		}
	}
	if a.Detail != "" {
		b.WriteString(": " + a.Detail)
	}
	for i := range a.Txns {
		fmt.Fprintf(&b, "\n  %v", &a.Txns[i])
	}
	for _, e := range a.Edges {
		fmt.Fprintf(&b, "\n  %v before %v (%v): %s", e.From, e.To, e.Kind, e.Why)
	}
	return b.String()
}

// String returns the transaction on one line. Of long lists and scans it shows
// the ends.
func (t *Txn) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v [%d, %d] ns", t.ID, t.Outcome, t.Invoke, t.Complete)
	switch {
	case t.Stale > 0:
		fmt.Fprintf(&b, ", snapshot of at most %d ns before", t.Stale)
	case t.Snapshot:
		b.WriteString(", snapshot")
	}
	b.WriteString(":")
	for i := range t.Ops {
		if i > 0 {
			b.WriteString(";")
		}
		b.WriteString(" " + t.Ops[i].String())
	}
	return b.String()
}

// rowsShown is how many rows of a scan, and values of a list, a report shows.
const rowsShown, valuesShown = 12, 24

// String returns the operation and its result.
func (o *Op) String() string {
	switch o.Kind {
	case OpAppend:
		return fmt.Sprintf("append %d to key %d", o.Value, o.Key)
	case OpRead:
		return fmt.Sprintf("read key %d = %s", o.Key, listString(o.List))
	case OpDelete:
		return fmt.Sprintf("delete key %d = %s", o.Key, listString(o.List))
	case OpScan:
		var b strings.Builder
		fmt.Fprintf(&b, "scan keys %d to %d = {", o.Key, o.Hi)
		for i, r := range o.Rows {
			if i == rowsShown {
				fmt.Fprintf(&b, " … %d more", len(o.Rows)-i)
				break
			}
			fmt.Fprintf(&b, " %d:%s", r.Key, listString(r.List))
		}
		return b.String() + " }"
	}
	return fmt.Sprintf("operation(%d)", o.Kind)
}

func listString(list []Value) string {
	switch {
	case len(list) == 0:
		return "absent"
	case len(list) <= valuesShown:
		return fmt.Sprint(list)
	}
	head, tail := list[:2], list[len(list)-valuesShown+2:]
	return strings.TrimSuffix(fmt.Sprint(head), "]") + fmt.Sprintf(" … %d more … ", len(list)-valuesShown) +
		strings.TrimPrefix(fmt.Sprint(tail), "[")
}

// Report is the result of a check.
type Report struct {
	Txns       int // in the history
	Considered int // committed, or of unknown outcome but seen to have taken effect
	Edges      int // dependencies, and helper edges of real time
	Anomalies  []Anomaly
	More       bool // there are more anomalies than Options.MaxAnomalies
}

// ErrAnomaly is wrapped by the error of a report that holds anomalies.
var ErrAnomaly = errors.New("history: not strictly serializable")

// OK reports whether no anomaly was found.
func (r *Report) OK() bool { return len(r.Anomalies) == 0 }

// Err returns nil, or an error that wraps [ErrAnomaly] and shows the report.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	return fmt.Errorf("%w:\n%v", ErrAnomaly, r)
}

// Has reports whether an anomaly of that name was found.
func (r *Report) Has(k Kind) bool {
	return slices.ContainsFunc(r.Anomalies, func(a Anomaly) bool { return a.Is(k) })
}

// String returns all anomalies, in a form to print when a test fails.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d transactions, %d considered, %d edges: ", r.Txns, r.Considered, r.Edges)
	if r.OK() {
		b.WriteString("no anomaly")
		return b.String()
	}
	fmt.Fprintf(&b, "%d anomalies", len(r.Anomalies))
	if r.More {
		b.WriteString(", and more")
	}
	for i := range r.Anomalies {
		b.WriteString("\n" + r.Anomalies[i].String())
	}
	return b.String()
}
