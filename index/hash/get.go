package hash

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Named bounds of one lookup. Past roundsMax it ends as Fallback, at busyMax as Locked.
const (
	roundsMax      = 64
	hopsMax        = 16 // overflow buckets followed in one walk of a chain
	busyMax        = 7  // locks that a lookup meets, unless its attempt has a bound
	busyRowRereads = 2  // of these, consecutive ones on one row before the chain is READ again
)

// phase says for which READs a lookup waits.
type phase uint8

const (
	phaseCached    phase = iota // the row, at the place in the location cache
	phaseHead                   // the first bucket of the chain
	phaseOverflow               // an overflow bucket
	phaseRow                    // the row to which a slot points
	phaseRoot                   // the root block, for the directory's address
	phaseDir                    // a directory word
	phaseConfirm                // the header of the head, once more
	phaseStart                  // nothing: there was no round yet
	phaseRows                   // rows to which slots point, of an index with string keys
	phaseCachedRow              // such a row, at the place in the location cache
	phaseRowsAt                 // rows, of a lookup of the past
	phaseCachedAt               // the row of such a lookup, at the place in the location cache
	phaseOlder                  // an older version
)

// getOp is a lookup: an index.GetOp.
//
//	start ─▶ cached row ─▶ done
//	  │          │ not there
//	  ▼          ▼
//	[root ─▶ dir ─▶] head ─▶ row ─▶ done           (a chunk not known costs the first two)
//	                  │  ▲     │ another key, next slot
//	                  ▼  │torn ▼
//	                overflow ◀─┘ ─▶ done, absent
//
// With string keys, see strget.go, row stands for all rows that the slots of a
// bucket lead to, and absent is confirmed if there were any.
type getOp struct {
	c        *Client
	counters *counters
	attempt  *index.Attempt // nil if the caller has not called Serve
	cache    *locations
	v        *view
	key      uint64
	hash     uint64
	tick     clock.Tick // as of which to read; 0 is the present
	place    uint64     // see Place; 0: not said

	phase phase
	wr    int // index of the awaited READ
	words []uint64
	addr  uint64 // address of the awaited READ

	buckets   uint64 // assumed number
	num       uint64 // of the head's bucket
	head      uint64 // its address
	version   uint64 // its header: the chain is READ as of this version
	slot      int    // next slot of bucket to examine
	bucket    [bucketWords]uint64
	scratch   [bucketWords]uint64 // root block, directory word
	row       []uint64            // row block, or several
	hops      int
	rounds    int
	busy      int
	rowBusy   int
	chases    uint64
	retries   uint64
	refreshes uint64

	res   index.GetResult
	proof [1]index.Proof

	// Of a lookup of the past.
	start time.Duration // when it began
	bound block.CSN     // bound on the CSN of the next version
	patch block.Older   // the link to the awaited version, if this is a patch
	base  []uint64      // payload of the row or version to which it is applied

	// With string keys.
	str    []byte
	unsure bool   // a slot has led to a row with another key
	extra  uint64 // READs beyond the first of each round
	nrows  int
	rows   [slots]candidate // in row
}

// Start implements index.GetOp.
func (o *getOp) Start(key index.Key) { o.StartAt(key, 0) }

// StartAt implements index.GetOp.
func (o *getOp) StartAt(key index.Key, at clock.Tick) {
	o.key, o.tick = key.Num, at
	if len(o.str)|len(key.Str) != 0 {
		o.keepStr(key.Str)
	}
	o.phase = phaseStart
	o.rounds, o.busy, o.rowBusy, o.hops = 0, 0, 0, 0
	o.chases, o.retries, o.refreshes, o.extra, o.patch = 0, 0, 0, 0, 0
	o.place, o.res = 0, index.GetResult{}
}

// Place implements index.PlacedGetter. Rows of varying size may move, and the memory may then be of
// another use, so that lookups of those ignore it.
func (o *getOp) Place(addr uint64) { o.place = addr }

// Serve implements index.Serving.
func (o *getOp) Serve(a *index.Attempt) { o.attempt = a }

// endsAtLock counts a block that a writer has locked, and reports whether the lookup
// ends.
func (o *getOp) endsAtLock() bool {
	o.busy++
	if o.tick != 0 {
		return o.busy >= busyMax
	}
	return o.busy >= o.attempt.LocksOr(busyMax)
}

// location returns the cached reference to the key's row, or 0.
func (o *getOp) location() uint64 {
	if o.c.entries <= 0 {
		o.cache = o.c.cache.Load()
		return 0
	}
	var began time.Duration
	switch {
	case o.tick != 0:
		began = o.start
	case o.attempt != nil:
		began = o.attempt.Began.Time()
	default:
		began = o.c.clock()
	}
	var ok bool
	if o.cache, ok = o.c.trusted(began); !ok {
		return 0
	}
	return o.cache.get(o.hash)
}

// Result implements index.GetOp.
func (o *getOp) Result() *index.GetResult { return &o.res }

// Next implements index.Op.
func (o *getOp) Next(done, next *rdma.Batch) bool {
	if o.phase >= phaseStart {
		switch {
		case o.phase == phaseStart:
			return o.begin(next)
		case o.phase >= phaseRowsAt:
			return o.onRowsAt(done, next)
		}
		return o.onRows(done, next)
	}
	wr := &done.WRs[o.wr]
	if wr.Status != rdma.StatusOK {
		return o.failed(wr.Status)
	}
	verdict := block.OK
	if o.phase < phaseDir {
		verdict = block.Accept(o.words, wr.Tail, o.addr, o.c.inOrder)
	}
	if verdict != block.OK {
		return o.notAtRest(verdict, next)
	}
	switch o.phase {
	case phaseCached:
		return o.onCached(next)
	case phaseHead:
		return o.onHead(next)
	case phaseOverflow:
		return o.onOverflow(next)
	case phaseRow:
		return o.onRow(next)
	case phaseRoot:
		return o.onRoot(next)
	case phaseDir:
		return o.onDir(next)
	default:
		return o.onConfirm(next)
	}
}

// read posts the READ that the operation waits for next.
func (o *getOp) read(p phase, addr uint64, words []uint64, next *rdma.Batch) bool {
	if o.rounds == roundsMax {
		return o.finish(index.Fallback)
	}
	o.rounds++
	o.phase, o.addr, o.words = p, addr, words
	o.wr = next.Read(o.c.rkey, addr, words)
	return false
}

func (o *getOp) begin(next *rdma.Batch) bool {
	if o.v = o.c.view.Load(); o.v == nil {
		return o.finish(index.Fallback)
	}
	o.buckets = o.c.buckets.Load()
	if o.v.strings || len(o.str) != 0 {
		return o.beginStr(next)
	}
	o.hash = hashKey(o.key)
	if o.tick != 0 {
		return o.beginAt(next)
	}
	if len(o.row) != o.v.rowBlock {
		o.row = resize(o.row, o.v.rowBlock)
	}
	addr := o.location()
	if addr == 0 && goodAddr(o.place, mem.LineBytes) {
		addr = o.place
	}
	if addr != 0 {
		return o.read(phaseCached, addr, o.row, next)
	}
	return o.readHead(next)
}

// readHead READs the head of the key's chain, according to the assumed number of
// buckets.
func (o *getOp) readHead(next *rdma.Batch) bool {
	o.num, o.hops, o.unsure = bucketOf(o.hash, o.buckets), 0, false
	head, known := o.v.bucketAddr(o.num)
	if !known {
		// The chunk is newer than the view. Maintain will fetch it for all
		// lookups; until then each fetches it itself.
		o.c.stale.Store(true)
		o.refreshes++
		return o.read(phaseRoot, o.c.root, o.scratch[:], next)
	}
	o.head = head
	return o.read(phaseHead, head, o.bucket[:], next)
}

func (o *getOp) onRoot(next *rdma.Batch) bool {
	root, err := decodeRoot(o.scratch[:])
	chunk, _ := o.v.geo.locate(o.num)
	if err != nil || root.geo != o.v.geo || chunk >= root.chunks {
		return o.finish(index.Fallback)
	}
	o.c.sawBuckets(root.buckets)
	return o.read(phaseDir, root.dirEntry(chunk), o.scratch[:1], next)
}

// onDir needs no acceptance rule: a directory word is written once, before
// the root block counts it.
func (o *getOp) onDir(next *rdma.Batch) bool {
	if !goodAddr(o.scratch[0], bucketBytes) {
		return o.finish(index.Fallback)
	}
	_, place := o.v.geo.locate(o.num)
	o.head = o.scratch[0] + place*bucketBytes
	return o.read(phaseHead, o.head, o.bucket[:], next)
}

func (o *getOp) onHead(next *rdma.Batch) bool {
	link := o.bucket[linkWord]
	level := linkLevel(link)
	if linkKind(link) != kindHead || level > levelMax || o.num>>level != 0 {
		return o.finish(index.Fallback)
	}
	if !covers(o.num, level, o.hash) {
		// The bucket was split: its level shows how many buckets there are at
		// least.
		n := bucketsAtLeast(o.num, level)
		if n <= o.buckets {
			return o.finish(index.Fallback)
		}
		o.chases++
		o.buckets = n
		o.c.sawBuckets(n)
		return o.readHead(next)
	}
	o.version = o.bucket[block.HeaderWord]
	o.slot = 0
	return o.searchBucket(next)
}

func (o *getOp) onOverflow(next *rdma.Batch) bool {
	if linkKind(o.bucket[linkWord]) != kindOverflow {
		return o.again(next)
	}
	if o.bucket[block.HeaderWord] > o.version {
		// Changed since the head was read: not the chain of that version.
		return o.again(next)
	}
	o.slot = 0
	return o.searchBucket(next)
}

// searchBucket examines the remaining slots of the bucket and follows the chain.
func (o *getOp) searchBucket(next *rdma.Batch) bool {
	if o.tick != 0 {
		return o.readSlots(next)
	}
	if o.v.strings {
		return o.searchStr(next)
	}
	for o.slot < slots {
		w := o.bucket[slotWord+o.slot]
		o.slot++
		if !slotMatches(w, o.hash) {
			continue
		}
		if addr := slotRef(w); goodAddr(addr, mem.LineBytes) {
			return o.read(phaseRow, addr, o.row, next)
		}
		return o.finish(index.Fallback)
	}
	return o.follow(next)
}

// follow READs the next bucket of the chain. At the end of the chain the key is
// absent.
func (o *getOp) follow(next *rdma.Batch) bool {
	over := linkNext(o.bucket[linkWord])
	if over == 0 {
		if o.unsure {
			return o.read(phaseConfirm, o.head, o.scratch[:1], next)
		}
		return o.absent()
	}
	if o.hops++; o.hops > hopsMax || !goodAddr(over, bucketBytes) {
		return o.finish(index.Fallback)
	}
	o.chases++
	return o.read(phaseOverflow, over, o.bucket[:], next)
}

func (o *getOp) absent() bool {
	o.res.Hint = o.head
	o.res.Rests = block.Header(o.version).CSN()
	o.proof[0] = index.Proof{Addr: o.head, Word: o.version}
	o.res.Proofs = o.proof[:]
	return o.finish(index.NotFound)
}

// onRow trusts only the row itself: the key of the slot may have been deleted
// since, and the block may have been reused for another row.
func (o *getOp) onRow(next *rdma.Batch) bool {
	if o.row[keyWord] != o.key {
		return o.searchBucket(next)
	}
	if h := block.Header(o.row[block.HeaderWord]); h.IsAbsent() {
		if o.newer(h) {
			return o.again(next)
		}
		return o.searchBucket(next)
	}
	return o.found()
}

// newer reports whether a tombstone is of a deletion after the head was READ.
// Otherwise the head's version proves that the key is absent.
func (o *getOp) newer(h block.Header) bool { return uint64(h.CSN()) > o.version }

func (o *getOp) onCached(next *rdma.Batch) bool {
	if o.row[keyWord] != o.key || block.Header(o.row[block.HeaderWord]).IsAbsent() {
		o.cache.drop(o.hash, o.addr)
		return o.readHead(next)
	}
	return o.found()
}

func (o *getOp) found() bool {
	if o.phase != phaseCached {
		o.cache.put(o.hash, o.addr)
	}
	h := o.row[block.HeaderWord]
	o.res.Row = o.row[rowWord : rowWord+o.v.rowWords]
	o.res.Header = block.Header(h)
	o.res.Rests = o.res.Header.CSN()
	o.res.Hint = o.addr
	o.proof[0] = index.Proof{Addr: o.addr, Word: h}
	o.res.Proofs = o.proof[:]
	return o.finish(index.Found)
}

// notAtRest handles a block that a writer has locked, or was changing during the
// READ.
func (o *getOp) notAtRest(verdict block.Verdict, next *rdma.Batch) bool {
	o.retries++
	if verdict == block.Busy {
		if o.phase == phaseRow && o.row[keyWord] != o.key {
			// A row's key is written before the row is linked and never
			// afterwards. A block with another key is therefore not the row of
			// this key, locked or not.
			return o.searchBucket(next)
		}
		if o.endsAtLock() {
			return o.finish(index.Locked)
		}
		if o.phase == phaseCached {
			// Locked, or freed and so locked: only the chain shows which.
			o.cache.drop(o.hash, o.addr)
			return o.readHead(next)
		}
	}
	runtime.Gosched()
	switch o.phase {
	case phaseRow:
		if verdict == block.Busy {
			if o.rowBusy++; o.rowBusy > busyRowRereads {
				o.rowBusy = 0
				return o.readHead(next)
			}
		}
		return o.read(phaseRow, o.addr, o.words, next)
	case phaseOverflow:
		return o.readHead(next)
	default:
		return o.read(o.phase, o.addr, o.words, next)
	}
}

// again reads the chain from its head, because it changed in between.
func (o *getOp) again(next *rdma.Batch) bool {
	o.retries++
	runtime.Gosched()
	return o.readHead(next)
}

func (o *getOp) wrongKey() bool {
	o.res.Err = keyError(o.v.strings, index.Key{Num: o.key, Str: string(o.str)})
	return o.finish(index.Failed)
}

func (o *getOp) failed(s rdma.Status) bool {
	err := s.Err()
	if errors.Is(err, rdma.ErrAccess) {
		// The server's memory never shrinks, so no stale address leads outside of it.
		err = fmt.Errorf("%w: %w at %#x", index.ErrCorrupt, err, o.addr)
	}
	o.res.Err = err
	return o.finish(index.Failed)
}

func (o *getOp) finish(s index.Status) bool {
	if o.tick != 0 {
		s = o.finishAt(s)
	}
	o.res.Status = s
	n, more := o.counters, o.chases|o.retries|o.refreshes|o.extra != 0
	if o.rounds == 1 && !more {
		n.plain.Add(1) // one atomic addition for the most frequent case
	} else {
		n.lookups.Add(1)
		n.rounds.Add(uint64(o.rounds))
		n.reads.Add(uint64(o.rounds) + o.extra)
	}
	if more {
		n.chases.Add(o.chases)
		n.retries.Add(o.retries)
		n.refreshes.Add(o.refreshes)
	}
	if s == index.Fallback {
		n.fallbacks.Add(1)
	}
	return true
}
