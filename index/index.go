package index

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// Errors of both halves.
var (
	// ErrLocked reports that another owner holds what was asked for. It is a result, counted and retried.
	ErrLocked = errors.New("index: locked by another transaction")
	// ErrHeldByClient is ErrLocked if the owner is a client that writes the index itself. The data
	// server does not learn when such a lock ends.
	ErrHeldByClient = fmt.Errorf("%w, of a client that writes the index", ErrLocked)
	// ErrFull reports that the region has no room for the change.
	ErrFull = errors.New("index: out of memory")
	// ErrRowSize reports a row of a size that the index does not hold.
	ErrRowSize = errors.New("index: row of a size the index does not hold")
	// ErrKey reports a string key longer than MaxKeyBytes, or a key of the wrong kind.
	ErrKey = errors.New("index: key the index does not hold")
	// ErrCorrupt reports published index memory that cannot be decoded, or is not of this index.
	ErrCorrupt = errors.New("index: corrupt or foreign index memory")
)

// Ages of proofs. A word that proves an answer says so only for a while: memory
// that was freed holds other rows later, and their words may be equal.
const (
	// MaxProofAge is how old a proof may be when a client validates it or sends it
	// to be validated, counted from before the attempt's first read.
	MaxProofAge = 15 * time.Second
	// MaxCommitAge is how old a proof may be when a server validates it, by the
	// server's own clock, which the client knows somewhat late. It counts the way
	// of the commit to the server and its waiting there.
	MaxCommitAge = 4 * MaxProofAge / 3
	// MaxLocationAge is how long ago a client may have seen, when an attempt
	// begins, that the addresses it has from earlier attempts are still good.
	MaxLocationAge = MaxProofAge / 2
	// Quarantine is how long freed memory whose words may come to prove another
	// answer stays unused, in time for which the server runs.
	Quarantine = block.Quarantine
)

// What clients measure has a margin of a third, for clocks that run at different
// rates.
var _ [Quarantine - max(MaxCommitAge, 4*MaxProofAge/3) - 4*MaxLocationAge/3]struct{}

// Proof is a word and the value that upholds an answer. The word is in the partition's region,
// which has the number 0, or in a region that one index has for itself. The number is in the
// upper 16 bits of Addr, so that no two words of a partition have the same.
type Proof struct {
	Addr uint64
	Word uint64
}

// regionShift is above the bits of an address within a region.
const regionShift = 48

// InRegion returns the address of a proof from the number of a region and the address in it.
func InRegion(region uint16, addr uint64) uint64 { return uint64(region)<<regionShift | addr }

// RegionOf returns the number of the region of a proof's address, and the address in it.
func RegionOf(addr uint64) (region uint16, in uint64) {
	return uint16(addr >> regionShift), addr & (1<<regionShift - 1)
}

// Status is the outcome of a lookup or scan.
type Status uint8

// Outcomes.
const (
	// Pending is the state of an operation under way.
	Pending Status = iota
	// Found: the row (or, for a scan, all rows asked for) was read.
	Found
	// NotFound: the key is absent; the proofs say so.
	NotFound
	// Locked: a writer holds the row or its gap; the caller backs off and retries.
	Locked
	// Fallback: the client half gave up within its bounds; ask the server.
	Fallback
	// Failed: the fabric failed a READ; the error is in the result.
	Failed
	// Gone: the version that was valid at the time asked for is no longer kept,
	// or its memory was reused while it was read.
	Gone
)

func (s Status) String() string {
	return [...]string{"pending", "found", "not found", "locked", "fallback", "failed", "gone"}[s]
}

// GetResult is the answer to a point lookup. Its slices are views into the
// operation's buffers, valid until its next Start.
type GetResult struct {
	Status Status
	Row    []uint64     // payload words of the row, if Found
	Header block.Header // the row's header, if Found
	Hint   uint64       // where a writer may look first (leaf or bucket address); 0 if unknown
	Proofs []Proof      // row header if Found; gap words if NotFound
	Rests  block.CSN    // newest commit that the answer rests on, if Found or NotFound
	Err    error        // if Failed; if Locked, ErrHeldByClient where that is known
}

// Entry is one row of a scan.
type Entry struct {
	Key    Key // a string is a view into the operation's buffers
	Row    []uint64
	Header block.Header
	Addr   uint64 // of the header word
}

// ScanResult is the answer to a range scan: the first rows of [lo, hi] in key
// order, at most limit of them, and proofs that no others lie between them.
type ScanResult struct {
	Status  Status
	Entries []Entry
	// More reports that the scan ended at its limit: rows past the last entry were neither returned nor covered.
	More bool
	// Quick proves the answer if all hold, but may fail without cause (one word a leaf, changed by any change in it).
	Quick []Proof
	// Gaps and the headers of Entries are exact: they fail only if the answer changed (or an equal one was rewritten).
	Gaps []Proof
	// Rests is the newest commit that the answer rests on, if Found: of the
	// rows returned, and of the deletions in what the scan covered.
	Rests block.CSN
	Err   error // as in GetResult
}

// RestOn takes in what one leaf adds to an answer: the newest deletion within
// its fences, and the rows of it.
func (r *ScanResult) RestOn(deleted block.CSN, rows []Entry) {
	r.Rests = max(r.Rests, deleted)
	for i := range rows {
		r.Rests = max(r.Rests, rows[i].Header.CSN())
	}
}

// Op is a resumable one-sided operation of a client half. It owns its buffers
// and is used by one goroutine.
//
// The driver calls Next with the batch of the round just completed (on the
// first call: an empty one) and the batch being built for the next round. The
// operation takes its completions from done, at the indices it remembers, and
// either finishes or appends work requests to next. Several operations share
// both batches, which is how one round serves many lookups. done and next are
// never the same batch.
type Op interface {
	Next(done, next *rdma.Batch) (finished bool)
}

// GetOp is a point lookup.
type GetOp interface {
	Op
	// Start prepares the lookup of key. It forgets the previous result.
	Start(key Key)
	// StartAt is Start for what key was at the end of a tick; 0 asks for the
	// present. An answer about a time has no proofs. It counts only if the
	// partition had closed the tick before the first READ, and if its floor,
	// read after the answer, is not above the tick.
	StartAt(key Key, at clock.Tick)
	// Result is the answer, once Next has reported finished.
	Result() *GetResult
}

// Attempt is what lookups know of the attempt of a transaction that they serve.
type Attempt struct {
	// Began is before the first read. A lookup that uses addresses from earlier attempts
	// must know it.
	Began clock.Mark
	// Locks is the number of locks that a lookup of the present meets before it ends as
	// Locked; 0 means the bound of the index. If other lookups share its rounds, they
	// wait while it READs a locked row again.
	Locks int
}

// LocksOr is the number of locks that a lookup of the attempt meets before it ends:
// Locks, or bound if there is no attempt or it sets none.
func (a *Attempt) LocksOr(bound int) int {
	if a == nil || a.Locks <= 0 {
		return bound
	}
	return a.Locks
}

// Serving is a GetOp that uses an Attempt. Without one it asks the clock, and has the
// bound of the index.
type Serving interface {
	// Serve sets where the attempt under way is found.
	Serve(a *Attempt)
}

// PlacedGetter is a GetOp that can be told where the row is.
type PlacedGetter interface {
	// Place says, after Start, at which address the key had its row at some time since the attempt
	// began. If that has changed the answer is the same, after more rounds. An address that was
	// never that of a row of the index may give a wrong answer: memory of another use can look like
	// a row.
	Place(addr uint64)
}

// LeafGetter is a GetOp of an index whose leaves clients may change.
type LeafGetter interface {
	// Leaf returns the leaf that covers the key, of which the answer is, with its address: the
	// operation's own memory, if it has ended as Found or NotFound. words is nil if clients do not
	// change the leaves of the index.
	Leaf() (addr uint64, words []uint64)
}

// ScanOp is a range scan.
type ScanOp interface {
	Op
	// Start prepares the scan of [lo, hi], at most limit rows; limit ≤ 0 means no limit but the bounds of the fabric.
	Start(lo, hi Key, limit int)
	// StartAt is Start for the rows at the end of a tick, as in GetOp.
	StartAt(lo, hi Key, limit int, at clock.Tick)
	Result() *ScanResult
}

// Client is the client half of one index in one partition. It holds what is
// cached (models, directories, locations) and is shared by all goroutines of
// a process; operations made by it are not.
type Client interface {
	// Maintain fetches by READs what the client half lacks or has found
	// stale, within bounds; the first call loads it. inOrder operations rely
	// on the connection kind given to New. It may be called concurrently:
	// one caller works, the others return at once.
	Maintain(ctx context.Context, c rdma.Conn) error
	// Stale reports, cheaply, whether Maintain has work to do.
	Stale() bool
	// NewGet and NewScan make operations for one goroutine, to be kept and
	// reused. NewScan is nil for an index without order.
	NewGet() GetOp
	NewScan() ScanOp
	// Stats is a snapshot of counters and cached bytes.
	Stats() ClientStats
}

// Outdating is a Client that caches what the server may have replaced as a whole.
type Outdating interface {
	// Outdate says that the server has replaced what the client half may hold. It reports whether
	// it holds any of that: then the next Maintain fetches all of it again, and lookups use what
	// is held until then.
	Outdate() bool
}

// ClientStats count the work of a client half.
type ClientStats struct {
	Lookups    uint64
	Rounds     uint64
	Reads      uint64
	Chases     uint64 // right links followed
	Fallbacks  uint64 // operations given up
	Retries    uint64 // torn or locked blocks read again
	Refreshes  uint64 // cached parts fetched again
	CacheBytes uint64 // all cached state
	ModelBytes uint64 // of it: models and router
	TTBytes    uint64 // of it: translation tables
}

// Owner identifies a transaction to the server half, within one partition.
type Owner uint64

// SharedLocks is the partition's table of shared locks, keyed by the address
// of the proof's word. The server half consults it before it locks, and keeps
// it in step when it moves words.
type SharedLocks interface {
	// Empty lets the common case skip the rest.
	Empty() bool
	// SharedByOther reports whether an owner other than o holds the word.
	SharedByOther(addr uint64, o Owner) bool
	// Move tells that what the word at from proved, the word at to proves now.
	Move(from, to uint64)
	// Copy tells that the gap proved by from is now proved by from and to together.
	Copy(from, to uint64)
}

// Held is an exclusive lock on one key. The server half keeps Addr in step
// when the row moves.
type Held struct {
	Key     Key
	Owner   Owner
	Addr    uint64       // of the header word
	Prev    block.Header // header before the lock; meaningful if Existed
	Existed bool         // a row was present
	Home    uint64       // leaf or bucket, for the server half
	Slot    int          // for the server half
	Room    Room         // of a row that varies in size, for the server half
	Turn    uint64       // for the caller of LockWrite, 0 at first
}

// Helds makes locks, many in one piece of memory. The zero value is ready.
type Helds struct{ free []Held }

// New returns a lock that has the contents of h.
func (m *Helds) New(h Held) *Held {
	if len(m.free) == 0 {
		m.free = make([]Held, heldsAtOnce)
	}
	p := &m.free[0]
	m.free = m.free[1:]
	*p = h
	return p
}

// heldsAtOnce is small, because one lock that is held keeps the memory of all.
const heldsAtOnce = 32

// Room is memory set aside for the row that will be published: see Server.Reserve.
type Room struct {
	Addr  uint64 // of a block, 0 if the row's own will do
	Words int    // of the block
}

// Place is where a visit of all rows of an index goes on: see Server.Visit.
type Place struct {
	Bucket uint64 // of an index without order
	Key    Key    // of an index with order
}

// Server is the server half of one index in one partition.
//
// The caller serialises the mutators (LockWrite, Publish, PublishDelete,
// Release, and the locked sections of Maintain): a partition has one executor.
// Get and Scan may run beside one mutator. Remote readers run beside
// everything.
type Server interface {
	// Root is the address of the index's root block: all that a client half needs to start.
	Root() uint64
	// Lookup looks up a committed row. Row and Proofs of res are memory to
	// use again; Row is the payload if Found, scratch otherwise. Locked rows
	// report Locked.
	Lookup(key Key, res *GetResult)
	// LookupAt is Lookup for what key was at the end of a tick, which the
	// partition has closed. The answer has no proofs, and counts only if the
	// partition's floor, loaded after it, is not above the tick.
	LookupAt(key Key, at clock.Tick, res *GetResult)
	// Get is Lookup with buf for the payload.
	Get(key Key, buf []uint64) GetResult
	// LockWrite locks key for o: its row, or a placeholder if there is none.
	// It returns ErrLocked if another owner holds the row, or shares it, or
	// (for an absent key) shares the gap; ErrFull if memory is out; nothing
	// is changed then. A key o has locked already returns the same Held.
	LockWrite(o Owner, key Key, hint uint64) (*Held, error)
	// Reserve makes sure of room for a row of that many words, so that
	// Publish cannot fail. It must be called, between LockWrite and Publish,
	// if rows of the index vary in size; Release and PublishDelete give back
	// what is not used. It returns ErrFull if memory is out, and ErrRowSize
	// for a size that no row of the index may have; the lock stays.
	Reserve(held *Held, words int) error
	// Publish writes the row, sets its header to h and so unlocks it. A row
	// that has outgrown its block moves to the reserved one. A concurrent
	// reader sees the old row, a lock, or the new row, never none or both.
	Publish(held *Held, row []uint64, h block.Header)
	// PublishDelete removes the row as of h and unlocks.
	PublishDelete(held *Held, h block.Header)
	// Release undoes LockWrite.
	Release(held *Held)
	// Load inserts a row outside any transaction. Keys in ascending order load fastest. It
	// returns ErrLocked, and changes nothing, if a transaction has locked the key, or
	// shares the row or the gap.
	Load(key Key, row []uint64, h block.Header) error
	// Expect makes room for so many rows, if it can, in an index that is empty
	// and is not served yet.
	Expect(rows uint64)
	// Restore makes the state of a key what a commit has made of it, a row or, if
	// the header says so, its absence; a row of the same commit or a later one
	// stays. It is for recovery: before the partition serves, and before its
	// history keeps versions, of which Restore leaves none. Rows in the order in
	// which Visit gives them are restored fastest. It returns ErrLocked if the row
	// is locked, and the errors of Load.
	Restore(key Key, row []uint64, h block.Header) error
	// Visit calls visit for the rows from a place on, and moves the place, until
	// it has read about so many words; it returns false after the last row. The
	// zero Place is the beginning. A row that is there from the first call to the
	// last is visited at least once, whatever changes between calls. A row that
	// is locked is visited as it was before, with its header unlocked. What
	// visit gets is valid during the call, and visit must not change the index.
	// The caller serialises Visit with the mutators.
	Visit(at *Place, words int, visit func(*Entry)) (more bool)
	// Bury removes traces of deletions at ticks up to floor, which no reader
	// needs any more, at most so many. It returns how many it removed. The
	// caller serialises it with the mutators.
	Bury(floor clock.Tick, most int) (done int)
	// Stats is a snapshot.
	Stats() ServerStats
	// Check verifies the whole structure, for tests and for `check`; it must not run beside a mutator.
	Check() error
}

// OrderedServer is a Server with range scans.
type OrderedServer interface {
	Server
	// Scan is the server-side range scan; buf is scratch for row payloads,
	// reused if large enough and returned for the next call.
	Scan(lo, hi Key, limit int, res *ScanResult, buf []uint64) []uint64
	// ScanAt is Scan for the rows at the end of a tick, as in LookupAt.
	ScanAt(lo, hi Key, limit int, at clock.Tick, res *ScanResult, buf []uint64) []uint64
}

// Hinted is an OrderedServer of which rows may be hints: words that readers check elsewhere, so that
// it does not matter which of two they get.
type Hinted interface {
	OrderedServer
	// SetHint replaces a row of one word, if its header is the given one: the row has not changed
	// since it had that, and is not locked. The header stays, so proofs of the row stay good. It
	// is a mutator.
	SetHint(key Key, was block.Header, hint uint64) bool
}

// Maintainer is a Server with background work, such as training models. now is the time since
// some fixed moment. lock keeps mutators out; it is taken for short sections, and may be nil if
// the caller keeps mutators out. One goroutine at a time may be in these methods. Each call does
// one bounded unit of work and reports whether there was any.
type Maintainer interface {
	// Maintain does what is due.
	Maintain(now time.Duration, lock sync.Locker) (worked bool)
	// MaintainAll does also what was done just before.
	MaintainAll(now time.Duration, lock sync.Locker) (worked bool)
	// MaintainLazily does first what readers lack most, and later what they lack little of.
	MaintainLazily(now time.Duration, lock sync.Locker) (worked bool)
	// Behind returns how many changes readers lack where they lack most, 0 if it is few.
	Behind(lock sync.Locker) uint64
}

// ServerStats describe the memory of a server half.
type ServerStats struct {
	Rows       uint64
	Tombstones uint64 // deletions that readers of the past may need; not among Rows
	RowBytes   uint64 // row blocks or leaves
	IndexBytes uint64 // buckets, directory; inner nodes; models
	InnerBytes uint64 // of it: inner nodes (ordered)
	Leaves     uint64
	Splits     uint64 // of a leaf, so far
	Merges     uint64 // of two leaves
	Unlinks    uint64 // of an empty leaf
	Moves      uint64 // of a row to a block of another size
	SubModels  uint64
	ModelBytes uint64 // published models, router and tail lists
	TTBytes    uint64 // published translation tables
	Retrains   uint64
	Pending    uint64 // retrain tasks waiting
	MeanError  float64
	MaxError   uint64 // leaves
	// TrainedKeys are the keys that the published models were trained on, and
	// ErrorKeys those of them that the first leaf read does not hold, by the
	// distance in leaves: 1, 2, up to 4, 8 and so on; the last has the rest.
	TrainedKeys   uint64
	ErrorKeys     [ErrorClasses]uint64
	Generations   uint64 // partitions into sub-models that were published
	TrainFailures uint64 // trainings given up for want of memory; models stay as they were
}

// ErrorClasses is the number of classes that ServerStats.ErrorKeys tells apart.
const ErrorClasses = 8

// Ruler is a client half, or a server half with range scans, that can say where
// to begin in order to read backwards.
type Ruler interface {
	// Before returns a key, not above the given one, so that about n rows lie
	// from it up to the given key. It is a guess, which proves nothing and may
	// be far off; the least key of the index is always right. Before makes no
	// round.
	Before(key Key, n int) Key
}

// Prefetcher is a Server that can bring a row nearer to the processor before
// Get is called for it. Each stage needs what the one before it fetched, so a
// caller with many keys runs stage after stage over all of them, and their
// cache misses overlap.
type Prefetcher interface {
	// Prefetch runs one stage, from 0 to PrefetchStages - 1. It may be
	// called wherever Get may, changes nothing and blocks on nothing.
	Prefetch(key Key, stage int)
}

// PrefetchStages is the number of stages of a Prefetcher.
const PrefetchStages = 2
