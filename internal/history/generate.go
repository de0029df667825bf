package history

import "math/rand/v2"

// PlanOp is one planned operation of a transaction. An OpDelete must first read
// the key, and is recorded with the list that it found.
type PlanOp struct {
	Kind  OpKind
	Key   Key   // the key; the lower end of a scan
	Hi    Key   // OpScan: the upper end, included
	Value Value // OpAppend
}

// Generator plans the transactions of one process. Set the fields, then call
// Next for each transaction and Observe for the lists that its reads and scans
// return. The same fields and observations give the same plans. It is for one
// goroutine.
//
// Work is spread over Keys slots. Each slot stands for one key at a time, and
// moves on to a new key when its list has become long, so that lists and the
// cost of reading them stay small however long a run is. Keys of neighbouring
// slots are neighbours, and a scan meets keys that exist, keys left behind and
// keys about to be created.
type Generator struct {
	Seed           uint64
	Process        uint32  // at most 2^24 - 1; different for each generator of a run
	Keys           int     // slots; zero means 16
	OpsPerTxn      int     // maximum number of operations of a transaction, the minimum is 1; zero means 6
	ReadFraction   float64 // share of operations that read one key
	ScanFraction   float64 // share of operations that scan; all others append
	DeleteFraction float64 // share of operations that delete
	ScanKeys       int     // maximum number of keys that a scan spans; zero means 8
	RotateAfter    int     // list length at which a slot moves on; zero means 16

	pcg     rand.PCG
	rand    *rand.Rand
	current []Key // the slot's key is current*Keys + slot
	values  uint64
}

// valueBits is the part of a value that counts a process's appends; the process
// number is above it.
const valueBits = 40

func (g *Generator) start() {
	setDefault(&g.Keys, 16)
	setDefault(&g.OpsPerTxn, 6)
	setDefault(&g.ScanKeys, 8)
	setDefault(&g.RotateAfter, 16)
	if g.Process >= 1<<(64-valueBits) {
		panic("history: Generator.Process too large")
	}
	g.pcg.Seed(g.Seed, uint64(g.Process))
	g.rand = rand.New(&g.pcg)
	g.current = make([]Key, g.Keys)
}

func setDefault(field *int, value int) {
	if *field <= 0 {
		*field = value
	}
}

// Next plans a transaction. It appends the operations to dst and returns it; no
// value is planned twice.
func (g *Generator) Next(dst []PlanOp) []PlanOp { return g.plan(dst, false) }

// NextSnapshot plans a transaction that only reads: in the place of appends and
// deletes are reads.
func (g *Generator) NextSnapshot(dst []PlanOp) []PlanOp { return g.plan(dst, true) }

func (g *Generator) plan(dst []PlanOp, reads bool) []PlanOp {
	if g.rand == nil {
		g.start()
	}
	for n := 1 + g.rand.IntN(g.OpsPerTxn); n > 0; n-- {
		op := PlanOp{Key: g.key(g.rand.IntN(g.Keys))}
		switch share := g.rand.Float64(); {
		case share < g.ReadFraction:
			op.Kind = OpRead
		case share < g.ReadFraction+g.ScanFraction:
			op.Kind = OpScan
			op.Hi = op.Key + Key(g.rand.IntN(g.ScanKeys))
		case reads:
			op.Kind = OpRead
		case share < g.ReadFraction+g.ScanFraction+g.DeleteFraction:
			op.Kind = OpDelete
		default:
			op = g.append(op.Key)
		}
		dst = append(dst, op)
	}
	return dst
}

// key is the one that a slot stands for.
func (g *Generator) key(slot int) Key { return g.current[slot]*Key(g.Keys) + Key(slot) }

func (g *Generator) append(k Key) PlanOp {
	g.values++
	return PlanOp{Kind: OpAppend, Key: k, Value: Value(uint64(g.Process)<<valueBits | g.values)}
}

// NextSkew plans one of two transactions that form a write skew when both commit: one
// scans some keys, and appends to one of them and to a key elsewhere; the other reads
// that key, and appends to another one of those scanned. Two processes take a few places
// only, so they often meet. It appends the operations to dst as Next does.
func (g *Generator) NextSkew(dst []PlanOp) []PlanOp {
	if g.rand == nil {
		g.start()
	}
	near := g.rand.IntN(skewPlaces) * g.Keys / skewPlaces
	in := (near + g.rand.IntN(g.ScanKeys)) % g.Keys
	away := g.key((near + g.Keys/2 + g.ScanKeys) % g.Keys)
	if g.rand.IntN(2) == 0 {
		return append(dst, PlanOp{Kind: OpRead, Key: away}, g.append(g.key(in)))
	}
	scan := PlanOp{Kind: OpScan, Key: g.key(near)}
	scan.Hi = scan.Key + Key(g.ScanKeys-1)
	return append(dst, scan, g.append(g.key(in)), g.append(away))
}

// skewPlaces is how many places the transactions of NextSkew meet at.
const skewPlaces = 4

// Observe reports to the generator the length of the list that a read or a scan
// found at a key, so that processes leave full keys and follow each other to
// new ones.
func (g *Generator) Observe(k Key, length int) {
	if g.rand == nil {
		g.start()
	}
	slot, turn := k%Key(g.Keys), k/Key(g.Keys)
	if length == 0 || turn < g.current[slot] {
		return
	}
	g.current[slot] = turn
	if length >= g.RotateAfter {
		g.current[slot]++
	}
}
