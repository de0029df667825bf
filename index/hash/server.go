package hash

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync/atomic"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// rowsPerTwoBuckets is the mean number of rows a bucket at which the table grows,
// times two. Half full on average keeps the rows of the buckets not yet split
// in this round, which carry up to twice the mean, mostly out of overflow.
const rowsPerTwoBuckets = 5

// getAttempts bounds how often the server half reads a chain that the mutator
// is changing at the same time.
const getAttempts = 1 << 12

// Options configure the server half.
type Options struct {
	// Strings makes an index of string keys and rows of 0 to RowWords words,
	// instead of one of native keys and rows of RowWords words each.
	Strings bool
	// RowWords is the number of payload words of every row, from 0 to MaxRowWords;
	// with Strings it is the maximum, up to MaxStringRowWords.
	RowWords int
	// Locks is the partition's table of shared locks; nil means that there are
	// none.
	Locks index.SharedLocks
	// InitialBuckets is the number of buckets at first, rounded up to a power of two;
	// 0 means the least number.
	InitialBuckets int
}

// Server is the server half of a hash index: it owns the buckets and rows in
// the arena and applies changes. It implements index.Server. The caller
// serialises mutators; Get and Stats may run concurrently with one of them.
type Server struct {
	arena    *block.Arena
	history  *block.History
	versions block.VersionWords
	locks    index.SharedLocks
	strings  bool
	rowWords int           // with rows of variable size, the maximum
	rowBlock int           // words, if rows have one size
	rows     *block.Rows   // if rows have one size
	varied   *block.Varied // if rows have variable size
	tag      uint32        // in rows of variable size
	overflow *block.Slab
	sized    *block.Sized // chunks and directories
	geo      geometry
	root     uint64
	dir      uint64
	dirRoom  uint64 // chunks the directory has room for

	chunks  atomic.Pointer[[]uint64] // addresses; only ever appended to
	buckets atomic.Uint64
	linked  atomic.Uint64 // rows, placeholders and tombstones in chains
	tombs   atomic.Uint64 // those of linked that are tombstones, including locked ones

	// Of the mutator.
	held   map[uint64]*index.Held // by native key, or by address of the row
	helds  index.Helds
	chain  []uint64    // addresses of the buckets of the chain walked last
	edits  []openBlock // buckets being changed
	least  block.CSN   // bound on the version of the change under way
	moved  []uint64    // slots of the chain being split
	body   []uint64    // scratch for a row block
	usual  int         // payload words of the row inserted last
	graves graves
}

var _ index.Server = (*Server)(nil)

// NewServer creates an empty index in the arena. It returns index.ErrFull if
// the region has no room for it.
func NewServer(a *block.Arena, o Options) (*Server, error) {
	most, words := MaxRowWords, rowBlockWords(o.RowWords)
	if o.Strings {
		most, words = MaxStringRowWords, largestStrBlock(o.RowWords)
	}
	if room := a.Region().SegmentBytes() / 2; o.RowWords < 0 || o.RowWords > most || uint64(words)*mem.WordBytes > room {
		return nil, fmt.Errorf("hash: rows of %d words; want 0 to %d, in blocks of at most %d bytes", o.RowWords, most, room)
	}
	if o.InitialBuckets < 0 || o.InitialBuckets > 1<<30 {
		return nil, fmt.Errorf("hash: %d initial buckets; want at most 2^30", o.InitialBuckets)
	}
	s := &Server{
		arena: a, history: a.History(), versions: versionsOf(o.Strings), locks: o.Locks, strings: o.Strings, rowWords: o.RowWords, rowBlock: words,
		overflow: a.NewSlab(bucketBytes), sized: a.NewSized(), held: map[uint64]*index.Held{},
	}
	if o.Strings {
		s.varied = a.NewVaried(words)
	} else {
		s.rows = a.NewRows(words * mem.WordBytes)
	}
	// Chunks grow up to 256 KiB, or to what fits well in a segment.
	s.geo.max = uint8(min(12, bits.Len64(a.Region().SegmentBytes()/4/bucketBytes)-1))
	s.geo.first = min(4, s.geo.max)
	s.chunks.Store(new([]uint64))
	if err := s.create(uint64(max(o.InitialBuckets, 1))); err != nil {
		return nil, full(err)
	}
	return s, nil
}

func full(err error) error {
	if errors.Is(err, block.ErrFull) {
		return fmt.Errorf("%w: %w", index.ErrFull, err)
	}
	return err
}

// create allocates root, directory and the first buckets.
func (s *Server) create(want uint64) error {
	n := max(uint64(1)<<bits.Len64(want-1), 1<<s.geo.first)
	slab := s.arena.NewSlab(bucketBytes)
	var err error
	if s.root, err = slab.Alloc(); err != nil {
		return err
	}
	s.tag = strTag(s.root)
	for s.geo.capacity(uint64(len(*s.chunks.Load()))) < n {
		if err := s.addChunk(); err != nil {
			return err
		}
	}
	v := block.Present(s.arena.NextCSN())
	for b := range n {
		s.emptyHead(s.bucketAddr(b), levelOf(b, n), v)
	}
	s.buckets.Store(n)
	s.publishRoot()
	return nil
}

func (s *Server) version() block.Header {
	return block.Present(block.CSN(s.arena.NextVersion()))
}

func (s *Server) emptyHead(addr uint64, level uint8, v block.Header) {
	e := s.arena.Create(addr, bucketWords)
	e.Set(linkWord, makeLink(kindHead, level, 0))
	e.Commit(v)
}

// publishRoot writes the root block. The blocks that it names are already
// published.
func (s *Server) publishRoot() {
	e := s.arena.Create(s.root, rootWords)
	e.Set(rootMagicWord, rootMagic)
	r := rootInfo{strings: s.strings, rowWords: s.rowWords, dir: s.dir, chunks: uint64(len(*s.chunks.Load())), geo: s.geo, buckets: s.buckets.Load()}
	e.Set(rootRowWord, r.rowsWord())
	w := r.words()
	e.Write(rootDirWord, w[:])
	e.Commit(s.version())
}

// addChunk allocates a chunk of buckets and enters it in the directory. Clients
// see it after publishRoot.
func (s *Server) addChunk() error {
	old := *s.chunks.Load()
	n := uint64(len(old))
	if n == chunksMax {
		return fmt.Errorf("%w: %d chunks", index.ErrFull, n)
	}
	addr, err := s.sized.Alloc(int(s.geo.buckets(n) * bucketBytes))
	if err != nil {
		return err
	}
	if n == s.dirRoom {
		if err := s.growDir(old); err != nil {
			s.sized.Free(addr, int(s.geo.buckets(n)*bucketBytes))
			return err
		}
	}
	e := s.arena.Begin(s.dir, block.BodyWord+int(s.dirRoom))
	e.Set(block.BodyWord+int(n), addr)
	e.Commit(s.version())
	grown := append(old, addr)
	s.chunks.Store(&grown)
	return nil
}

// growDir moves to a directory with twice the room. The old directory stays
// unchanged, so that its words remain valid for a client that still reads it.
// All old directories together are smaller than the new one.
func (s *Server) growDir(chunks []uint64) error {
	words := max(bucketWords, 2*(block.BodyWord+int(s.dirRoom)))
	addr, err := s.sized.Alloc(words * mem.WordBytes)
	if err != nil {
		return err
	}
	e := s.arena.Create(addr, words)
	e.Write(block.BodyWord, chunks)
	e.Commit(s.version())
	s.dir, s.dirRoom = addr, uint64(words-block.BodyWord)
	return nil
}

// Root implements index.Server.
func (s *Server) Root() uint64 { return s.root }

// bucketAddr returns the address of bucket b.
func (s *Server) bucketAddr(b uint64) uint64 {
	chunk, place := s.geo.locate(b)
	return (*s.chunks.Load())[chunk] + place*bucketBytes
}

// Get implements index.Server.
func (s *Server) Get(key index.Key, buf []uint64) index.GetResult {
	res := index.GetResult{Row: buf}
	s.Lookup(key, &res)
	return res
}

// Lookup implements index.Server. It may run concurrently with one mutator. If
// a row or chain stays locked, the status is Locked.
func (s *Server) Lookup(key index.Key, res *index.GetResult) {
	if s.wrongKind(key) {
		s.settle(res, index.Failed, 0, 0)
		res.Err = s.keyError(key)
		return
	}
	hash := hashKey(key.Num)
	if s.strings {
		hash = hashString(key.Str)
	}
	for range getAttempts {
		if s.tryGet(key, hash, res) {
			return
		}
		runtime.Gosched()
	}
	s.settle(res, index.Locked, 0, 0)
}

// settle overwrites a result with the given status, header and hint, and reuses its
// memory.
func (s *Server) settle(res *index.GetResult, st index.Status, h block.Header, hint uint64) {
	*res = index.GetResult{Status: st, Header: h, Hint: hint, Row: res.Row, Proofs: res.Proofs[:0]}
}

// tryGet reads the chain once. It returns false if the mutator changed the
// chain in between. A row that is found is its own proof; every other result is
// valid only if the chain's head has not changed.
func (s *Server) tryGet(key index.Key, hash uint64, res *index.GetResult) (ok bool) {
	var b [bucketWords]uint64
	num := bucketOf(hash, s.buckets.Load())
	head := s.bucketAddr(num)
	if !s.readBucket(head, &b) || !covers(num, linkLevel(b[linkWord]), hash) {
		return false
	}
	version := b[block.HeaderWord]
	for {
		for _, w := range b[slotWord : slotWord+slots] {
			if !slotMatches(w, hash) {
				continue
			}
			if s.strings {
				s.readStrRow(slotRef(w), key.Str, res)
			} else {
				s.readRow(slotRef(w), key.Num, res)
			}
			switch res.Status {
			case index.NotFound: // another key with this fingerprint
			case index.Pending:
				return false
			case index.Locked: // locked by a transaction, or just freed
				return s.unchanged(head, version)
			default:
				return true
			}
		}
		next := linkNext(b[linkWord])
		if next == 0 {
			s.settle(res, index.NotFound, 0, head)
			res.Rests = block.Header(version).CSN()
			res.Proofs = append(res.Proofs, index.Proof{Addr: head, Word: version})
			return s.unchanged(head, version)
		}
		if !s.readBucket(next, &b) || b[block.HeaderWord] > version {
			return false
		}
	}
}

func (s *Server) unchanged(head, version uint64) bool {
	return s.arena.Span(head, 1).Load(0) == version
}

// readBucket copies a bucket and reports whether the copy is consistent.
func (s *Server) readBucket(addr uint64, b *[bucketWords]uint64) bool {
	sp := s.arena.Span(addr, bucketWords)
	sp.CopyOut(b[:])
	return block.Accept(b[:], sp.Load(block.HeaderWord), addr, true) == block.OK
}

// readRow copies the payload of the row at addr. The status is NotFound if the
// row has another key, Pending if the copy is torn.
func (s *Server) readRow(addr, key uint64, res *index.GetResult) {
	sp := s.arena.Span(addr, s.rowBlock)
	h := block.Header(sp.Load(block.HeaderWord))
	switch {
	case h.IsAbsent() && !h.Locked() || sp.Load(keyWord) != key:
		s.settle(res, index.NotFound, 0, 0)
		return
	case h.Locked():
		s.settle(res, index.Locked, 0, addr)
		return
	}
	if cap(res.Row) < s.rowWords {
		res.Row = make([]uint64, s.rowWords)
	}
	res.Row = res.Row[:s.rowWords]
	sp.Slice(rowWord, s.rowWords).CopyOut(res.Row)
	if block.Header(sp.Load(block.HeaderWord)) != h {
		s.settle(res, index.Pending, 0, 0)
		return
	}
	s.settle(res, index.Found, h, addr)
	res.Rests = h.CSN()
	res.Proofs = append(res.Proofs, index.Proof{Addr: addr, Word: uint64(h)})
}

// Stats implements index.Server.
func (s *Server) Stats() index.ServerStats {
	rows, over, sized := s.rowStats(), s.overflow.Stats(), s.sized.Stats()
	return index.ServerStats{
		Rows: s.linked.Load() - s.tombs.Load(), Tombstones: s.tombs.Load(), RowBytes: rows.Bytes,
		IndexBytes: over.Bytes + sized.Bytes + bucketBytes,
	}
}

func (s *Server) rowStats() block.SlabStats {
	if s.strings {
		return s.varied.Stats()
	}
	return s.rows.Stats()
}
