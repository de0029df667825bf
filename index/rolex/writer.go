package rolex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Errors of a writer.
var (
	// ErrChanged reports a leaf that has changed since it was READ.
	ErrChanged = errors.New("rolex: a leaf has changed")
	// ErrFenced reports that the index must be opened again.
	ErrFenced = errors.New("rolex: the index must be opened again")
	// ErrNoLeaf reports that the writer has no leaf left for a split: see Server.Extend.
	ErrNoLeaf = errors.New("rolex: no leaf is left for a split")
	// ErrUnknown reports a transaction whose connection broke while it was applied. The data
	// server knows its outcome once it has settled: see Server.Settle.
	ErrUnknown = errors.New("rolex: the outcome of a transaction is unknown")
)

// HeldError reports a leaf that another writer holds. It wraps index.ErrLocked.
type HeldError struct {
	Leaf   uint64
	Header Header
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("rolex: leaf %#x is held: %v", e.Leaf, e.Header)
}

// Unwrap returns index.ErrLocked.
func (e *HeldError) Unwrap() error { return index.ErrLocked }

// Spare is a leaf that is not part of the index, for a split.
type Spare struct {
	Addr   uint64
	Header Header
}

// Opened is what a data server tells a writer that opens an index.
type Opened struct {
	ID    uint32 // of the index
	Owner Owner
	Key   rdma.RKey // of the region
	Fence uint64
	First uint64 // the leftmost leaf, for ever
}

// Writer changes an index over one connection. It is used by one goroutine.
type Writer struct {
	conn   rdma.Conn
	l      *layout
	o      Opened
	slot   uint64
	seq    uint64 // of the last transaction
	spares []Spare

	batch   rdma.Batch
	olds    []uint64
	control [1]uint64
	intent  intentBuilder
}

// NewWriter makes a writer of an index. The data server has granted the connection's peer
// WRITE and atomics on the region.
func NewWriter(conn rdma.Conn, o Options, at Opened) (*Writer, error) {
	l, err := newLayout(at.ID, o)
	if err != nil {
		return nil, err
	}
	if at.Owner < 1 || int(at.Owner) > l.writers {
		return nil, fmt.Errorf("rolex: writer %d of %d", at.Owner, l.writers)
	}
	return &Writer{conn: conn, l: l, o: at, slot: l.slotAddr(at.Owner)}, nil
}

// Supply gives the writer leaves for splits.
func (w *Writer) Supply(spares []Spare) { w.spares = append(w.spares, spares...) }

// Last returns the number of the last transaction that the writer began to apply.
func (w *Writer) Last() uint64 { return w.seq }

// change is a leaf that a transaction changes.
type change struct {
	addr  uint64
	was   image // as READ; of a new leaf only the header
	will  image
	fresh bool
}

// read READs the leaf that covers a key, from a leaf at or before it on, and follows right
// links. It returns a HeldError for a leaf that is held.
func (w *Writer) read(ctx context.Context, key, addr uint64) (uint64, image, error) {
	m := image{w.l, make([]uint64, w.l.LeafWords)}
	for torn := 0; ; {
		w.batch.Reset()
		w.batch.Read(w.o.Key, addr, m.w)
		if err := rdma.Do(ctx, w.conn, &w.batch); err != nil {
			return 0, image{}, err
		}
		switch h := m.header(); {
		case h.Held():
			return 0, image{}, &HeldError{addr, h}
		case !m.accept(addr, w.batch.WRs[0].Tail, w.conn.InOrder()):
			if torn++; torn > tornMax {
				return 0, image{}, fmt.Errorf("%w: leaf %#x changes all the time", ErrChanged, addr)
			}
		case h.Dead():
			return 0, image{}, fmt.Errorf("%w: leaf %#x is dead", ErrChanged, addr)
		case m.check(addr) != nil:
			return 0, image{}, fmt.Errorf("%w: %w", index.ErrCorrupt, m.check(addr))
		case key < m.low():
			return 0, image{}, fmt.Errorf("%w: leaf %#x begins after key %d", ErrChanged, addr, key)
		case !m.above(key):
			return addr, m, nil
		default:
			addr = m.right()
		}
	}
}

// tornMax is how often a leaf is READ again that changes while it is READ.
const tornMax = 16

// Write is a row to be set, or removed if Row is nil. Hint is a leaf at or before the one that
// covers the key; 0 means the first.
type Write struct {
	Key  uint64
	Row  []uint64
	Hint uint64
}

// Commit performs writes as one transaction, if what the proofs say still holds when all
// leaves that it changes are locked. A proof is the header of a leaf as READ.
//
// ErrChanged and a HeldError mean that nothing has happened. So does an error of the
// connection that is not ErrUnknown, but then locks may stay until the server has settled.
func (w *Writer) Commit(ctx context.Context, writes []Write, proofs []index.Proof) error {
	changes, err := w.plan(ctx, writes)
	if err != nil {
		return err
	}
	used := 0
	for _, c := range changes {
		if c.fresh {
			used++
		}
	}
	if err := w.describe(changes); err != nil {
		return err
	}
	if err := w.lock(ctx, changes, proofs); err != nil {
		return err
	}
	w.spares = w.spares[:len(w.spares)-used]
	return w.apply(ctx, changes)
}

// from is the header of the leaf when the transaction has locked what it changes.
func (c *change) from(o Owner) Header {
	if c.fresh {
		return c.was.header()
	}
	return c.was.header().hold(o)
}

// plan READs the leaves that writes change, and makes them what they shall be.
func (w *Writer) plan(ctx context.Context, writes []Write) ([]change, error) {
	var changes []change
	spare := len(w.spares)
	for _, x := range writes {
		if x.Row != nil && len(x.Row) != w.l.RowWords {
			return nil, fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(x.Row), w.l.RowWords)
		}
		i := slices.IndexFunc(changes, func(c change) bool { return c.will.covers(x.Key) })
		if i < 0 {
			hint := x.Hint
			if hint == 0 {
				hint = w.o.First
			}
			addr, m, err := w.read(ctx, x.Key, hint)
			if err != nil {
				return nil, err
			}
			i = len(changes)
			changes = append(changes, change{addr: addr, was: m, will: image{w.l, slices.Clone(m.w)}})
		}
		if x.Row == nil {
			changes[i].will.remove(x.Key)
			continue
		}
		if changes[i].will.put(x.Key, x.Row) {
			continue
		}
		if spare == 0 {
			return nil, ErrNoLeaf
		}
		spare--
		s := w.spares[spare]
		right := image{w.l, make([]uint64, w.l.LeafWords)}
		changes[i].will.split(right, s.Addr, x.Key)
		right.w[block.HeaderWord] = uint64(s.Header)
		fresh := change{addr: s.Addr, was: image{w.l, slices.Clone(right.w)}, will: right, fresh: true}
		if right.covers(x.Key) {
			right.put(x.Key, x.Row)
		} else {
			changes[i].will.put(x.Key, x.Row)
		}
		changes = append(changes, fresh)
	}
	// All writers lock in one order, so that of two that want the same leaves one gets all.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.addr, b.addr) })
	for _, c := range changes {
		c.will.seal(c.addr, c.was.header().next())
	}
	return changes, nil
}

// describe builds the intent. The words of new leaves are not in it: they precede it.
func (w *Writer) describe(changes []change) error {
	w.intent.begin(w.seq + 1)
	for _, c := range changes {
		w.intent.leaf(c.addr, c.from(w.o.Owner), c.will.header())
		if !c.fresh {
			c.runs(func(first, n int) { w.intent.run(first, c.will.w[first:first+n]) })
		}
	}
	return w.intent.end(w.slot)
}

// runs calls f for the runs of words that a change changes. Runs that are near are one.
func (c *change) runs(f func(first, n int)) {
	const near = 4 // words; a WRITE has as many of its own
	first, end := -1, 0
	for i := block.ChecksumWord; i < len(c.will.w); i++ {
		if c.will.w[i] == c.was.w[i] {
			continue
		}
		if first >= 0 && i-end > near {
			f(first, end-first)
			first = -1
		}
		if first < 0 {
			first = i
		}
		end = i + 1
	}
	if first >= 0 {
		f(first, end-first)
	}
}

// lock locks the leaves and checks the proofs, or locks nothing.
func (w *Writer) lock(ctx context.Context, changes []change, proofs []index.Proof) error {
	b := &w.batch
	b.Reset()
	b.Ordered = true
	w.olds = slices.Grow(w.olds[:0], len(changes)+len(proofs))[:len(changes)+len(proofs)]
	w.hold(changes)
	w.look(len(changes), proofs)
	b.Read(w.o.Key, controlAddr+fenceWord*mem.WordBytes, w.control[:])
	if err := rdma.Do(ctx, w.conn, b); err != nil {
		return err
	}
	err := w.locked(changes, proofs)
	if err == nil {
		return nil
	}
	b.Reset()
	for i, c := range changes {
		if was := c.was.header(); !c.fresh && w.olds[i] == uint64(was) {
			b.CAS(w.o.Key, c.addr, uint64(c.from(w.o.Owner)), uint64(was), w.olds[i:i+1])
		}
	}
	if b.Len() > 0 {
		err = errors.Join(err, rdma.Do(ctx, w.conn, b))
	}
	return err
}

// hold locks the leaves that a transaction changes.
func (w *Writer) hold(changes []change) {
	for i, c := range changes {
		if !c.fresh {
			w.batch.CAS(w.o.Key, c.addr, uint64(c.was.header()), uint64(c.from(w.o.Owner)), w.olds[i:i+1])
		}
	}
}

// look READs what the proofs say, into w.olds from place at on.
func (w *Writer) look(at int, proofs []index.Proof) {
	for i, p := range proofs {
		w.batch.Read(w.o.Key, p.Addr, w.olds[at+i:][:1])
	}
}

// locked judges what lock has found.
func (w *Writer) locked(changes []change, proofs []index.Proof) error {
	if w.control[0] != w.o.Fence {
		return ErrFenced
	}
	for i, c := range changes {
		if h := Header(w.olds[i]); c.fresh || h == c.was.header() {
			continue
		} else if h.Held() {
			return &HeldError{c.addr, h}
		}
		return fmt.Errorf("%w: leaf %#x", ErrChanged, c.addr)
	}
	for i, p := range proofs {
		h := Header(w.olds[len(changes)+i])
		if own := h.Held() && h.Owner() == w.o.Owner; own {
			h = h.release() // this transaction has locked it
		}
		if uint64(h) != p.Word {
			return fmt.Errorf("%w: leaf %#x", ErrChanged, p.Addr)
		}
	}
	return nil
}

// apply changes the leaves and unlocks them. The transaction is committed when its intent is
// complete.
func (w *Writer) apply(ctx context.Context, changes []change) error {
	w.seq++
	w.batch.Reset()
	w.batch.Ordered = true
	w.fill(changes)
	w.batch.Write(w.o.Key, w.slot, w.intent.w)
	w.enliven(changes)
	w.change(changes)
	w.unlock(changes)
	if err := rdma.Do(ctx, w.conn, &w.batch); err != nil {
		return fmt.Errorf("%w: transaction %d: %w", ErrUnknown, w.seq, err)
	}
	for i, c := range changes {
		if h := Header(w.olds[i]); h != c.from(w.o.Owner) {
			return fmt.Errorf("%w: transaction %d: leaf %#x was taken away: %v", ErrUnknown, w.seq, c.addr, h)
		}
	}
	return nil
}

// fill writes the new leaves, which are dead.
func (w *Writer) fill(changes []change) {
	for _, c := range changes {
		if c.fresh {
			w.batch.Write(w.o.Key, c.addr+block.ChecksumWord*mem.WordBytes, c.will.w[block.ChecksumWord:])
		}
	}
}

// enliven makes the new leaves part of the index. No link leads to them yet.
func (w *Writer) enliven(changes []change) {
	for i, c := range changes {
		if c.fresh {
			w.pass(i, c)
		}
	}
}

// change writes the words that change in the other leaves.
func (w *Writer) change(changes []change) {
	for _, c := range changes {
		if !c.fresh {
			c.runs(func(first, n int) {
				w.batch.Write(w.o.Key, c.addr+uint64(first)*mem.WordBytes, c.will.w[first:first+n])
			})
		}
	}
}

// unlock unlocks them, one version on.
func (w *Writer) unlock(changes []change) {
	for i, c := range changes {
		if !c.fresh {
			w.pass(i, c)
		}
	}
}

// pass moves the header of a change on.
func (w *Writer) pass(i int, c change) {
	w.batch.CAS(w.o.Key, c.addr, uint64(c.from(w.o.Owner)), uint64(c.will.header()), w.olds[i:i+1])
}
