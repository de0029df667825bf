package rolex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
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
	// ErrBusy reports that transactions wait at the data server, and writers must let them pass:
	// see Server.Busy.
	ErrBusy = errors.New("rolex: transactions wait at the data server")
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
	control [controlWords]uint64
	rounds  uint64
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

// Again makes the writer go on with what the data server tells it after the index was fenced. Its
// transactions are counted on.
func (w *Writer) Again(at Opened) error {
	if at.ID != w.o.ID || at.Owner != w.o.Owner || at.Key != w.o.Key {
		return fmt.Errorf("%w: it is another index, or another writer", ErrFenced)
	}
	w.o = at
	return nil
}

// do performs the batch. If ctx ends first, the batch may still be on its way: the connection is
// closed, and the data server settles what it has left behind.
func (w *Writer) do(ctx context.Context) error {
	err := rdma.Do(ctx, w.conn, &w.batch)
	w.rounds++
	if err != nil && ctx.Err() != nil {
		_ = w.conn.Close()
		return fmt.Errorf("%w: %w", rdma.ErrPeerDown, err)
	}
	return err
}

// Supply gives the writer leaves for splits.
func (w *Writer) Supply(spares []Spare) { w.spares = append(w.spares, spares...) }

// Last returns the number of the last transaction that the writer began to apply.
func (w *Writer) Last() uint64 { return w.seq }

// Rounds returns how many rounds the writer has made.
func (w *Writer) Rounds() uint64 { return w.rounds }

// Opened returns what the writer was opened with.
func (w *Writer) Opened() Opened { return w.o }

// read READs the leaf that covers a key, from a leaf at or before it on, and follows right
// links. It returns a HeldError for a leaf that is held.
func (w *Writer) read(ctx context.Context, key, addr uint64) (uint64, image, error) {
	m := image{w.l, make([]uint64, w.l.LeafWords)}
	from := uint64(0) // low fence of the leaf to come
	for torn, dead := 0, 0; ; {
		w.batch.Reset()
		w.batch.Read(w.o.Key, addr, m.w)
		if err := w.do(ctx); err != nil {
			return 0, image{}, err
		}
		switch h := m.header(); {
		case h.Held():
			return 0, image{}, &HeldError{addr, h}
		case h.Dead(): // it was taken out, and perhaps names the leaf that has its keys
			if dead++; dead > deadMax || !w.l.mayBe(m.right()) {
				return 0, image{}, fmt.Errorf("%w: leaf %#x is dead", ErrChanged, addr)
			}
			from, addr = 0, m.right()
		case !m.accept(addr, w.batch.WRs[0].Tail, w.conn.InOrder()):
			if torn++; torn > tornMax {
				return 0, image{}, fmt.Errorf("%w: leaf %#x changes all the time", ErrChanged, addr)
			}
		case m.check(addr) != nil:
			return 0, image{}, fmt.Errorf("%w: %w", index.ErrCorrupt, m.check(addr))
		case key < m.low():
			return 0, image{}, fmt.Errorf("%w: leaf %#x begins after key %d", ErrChanged, addr, key)
		case m.low() < from: // its memory serves elsewhere, or a hostile writer has linked it
			return 0, image{}, fmt.Errorf("%w: leaf %#x begins before key %d", ErrChanged, addr, from)
		case !m.above(key):
			return addr, m, nil
		default:
			from, addr = m.w[leaf.HighWord], m.right()
		}
	}
}

// tornMax is how often a leaf is READ again that changes while it is READ, and deadMax how many
// dead leaves a writer follows.
const (
	tornMax = 16
	deadMax = 4
)

// Proof is a word that a transaction has READ, of the index or of another region of its partition.
type Proof struct {
	Key  rdma.RKey
	Addr uint64
	Word uint64
}

// Txn is a transaction.
type Txn struct {
	Writes []Write
	// Proofs must hold when all leaves that the transaction changes are locked. The proof of a
	// leaf is its header.
	Proofs []Proof
	// Words at an address of another region are READ with the proofs into Into, and Judge then
	// says whether the transaction may go on. It has none if Judge is nil.
	Words rdma.RKey
	At    uint64
	Into  []uint64
	Judge func() error
}

// Commit performs a transaction.
//
// Any error that is not ErrUnknown means that nothing has happened: ErrChanged, ErrRefused,
// ErrFenced, ErrNoLeaf, ErrTooLarge, a HeldError, the error of Judge. So does an error of the
// connection, but then locks may stay until the server has settled. If ctx ends while requests are
// in flight, the connection is closed.
func (w *Writer) Commit(ctx context.Context, t *Txn) error {
	from := &remote{Writer: w, ctx: ctx, left: len(w.spares)}
	changes, err := w.l.plan(from, t.Writes)
	if errors.Is(err, errLent) {
		from.own, from.left = true, len(w.spares)
		changes, err = w.l.plan(from, t.Writes)
	}
	if err != nil {
		return err
	}
	requests, err := w.describe(changes)
	if n := len(changes) + len(t.Proofs) + 2; err == nil && max(n, requests) > rdma.MaxBatch {
		err = fmt.Errorf("%w: %d requests at a time, at most %d", ErrTooLarge, max(n, requests), rdma.MaxBatch)
	}
	if err != nil {
		return err
	}
	if err := w.lock(ctx, changes, t); err != nil {
		return err
	}
	w.spares = w.spares[:from.left]
	return w.apply(ctx, changes)
}

// remote is where a writer finds leaves: behind its connection.
type remote struct {
	*Writer
	ctx  context.Context
	left int  // spares that no split has taken
	own  bool // the writer READs all leaves itself
}

func (r *remote) leaf(x *Write) (addr uint64, m image, lent bool, err error) {
	hint := x.Hint
	if hint == 0 {
		hint = r.o.First
	}
	if m := (image{r.l, x.Leaf}); !r.own && len(x.Leaf) == r.l.LeafWords && !m.header().Held() && !m.header().Dead() && m.check(hint) == nil && m.covers(x.Key) {
		return hint, m, true, nil
	}
	addr, m, err = r.read(r.ctx, x.Key, hint)
	return addr, m, false, err
}

func (r *remote) spare() (Spare, error) {
	if r.left == 0 {
		return Spare{}, ErrNoLeaf
	}
	r.left--
	return r.spares[r.left], nil
}

// describe builds the intent, and returns how many requests apply makes. The words of new leaves
// are not in the intent: they precede it.
func (w *Writer) describe(changes []change) (requests int, err error) {
	w.intent.begin(w.seq + 1)
	requests = 1
	for _, c := range changes {
		w.intent.leaf(c.addr, c.from(w.o.Owner), c.will.header())
		if requests++; c.fresh {
			requests++
			continue
		}
		c.runs(func(first, n int) {
			w.intent.run(first, c.will.w[first:first+n])
			requests++
		})
	}
	return requests, w.intent.end(w.slot)
}

// lock locks the leaves and checks the proofs, or locks nothing.
func (w *Writer) lock(ctx context.Context, changes []change, t *Txn) error {
	b := &w.batch
	b.Reset()
	b.Ordered = true
	w.olds = slices.Grow(w.olds[:0], len(changes)+len(t.Proofs))[:len(changes)+len(t.Proofs)]
	w.hold(changes)
	w.look(changes, t)
	b.Read(w.o.Key, controlAddr, w.control[:])
	err := w.do(ctx)
	if errors.Is(err, rdma.ErrPeerDown) || errors.Is(err, rdma.ErrClosed) {
		return err
	}
	if err == nil {
		err = w.locked(changes, t.Proofs)
	} // else a request was refused, and others have taken effect
	if err == nil && t.Judge != nil {
		err = t.Judge()
	}
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
		err = errors.Join(err, w.do(ctx))
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
func (w *Writer) look(changes []change, t *Txn) {
	at := len(changes)
	for i, p := range t.Proofs {
		if w.isLocked(changes, p) {
			w.olds[at+i] = p.Word // the lock proves it
			continue
		}
		w.batch.Read(p.Key, p.Addr, w.olds[at+i:][:1])
	}
	if t.Judge != nil {
		w.batch.Read(t.Words, t.At, t.Into)
	}
}

// isLocked reports whether a proof is what the lock of a leaf expects.
func (w *Writer) isLocked(changes []change, p Proof) bool {
	i, found := slices.BinarySearchFunc(changes, p.Addr, func(c change, addr uint64) int { return cmp.Compare(c.addr, addr) })
	return found && p.Key == w.o.Key && !changes[i].fresh && p.Word == uint64(changes[i].was.header())
}

// locked judges what lock has found.
func (w *Writer) locked(changes []change, proofs []Proof) error {
	switch {
	case w.control[fenceWord] != w.o.Fence:
		return ErrFenced
	case w.control[busyWord] != 0:
		return ErrBusy
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
		if own := p.Key == w.o.Key && h.Held() && h.Owner() == w.o.Owner; own {
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
	if err := w.do(ctx); err != nil {
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
