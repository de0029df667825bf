package hash

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Check implements index.Server: it verifies root, directory, every chain and every
// row, and returns index.ErrCorrupt for the first fault.
func (s *Server) Check() error {
	if err := s.checkRoot(); err != nil {
		return err
	}
	c := checker{s: s, rows: map[uint64]bool{}, keys: map[index.Key]bool{}, versions: map[uint64]bool{}}
	n := s.buckets.Load()
	for b := range n {
		if err := c.checkChain(b, levelOf(b, n)); err != nil {
			return fmt.Errorf("bucket %d of %d: %w", b, n, err)
		}
	}
	rows, over, rooms := s.rowStats().Used, s.overflow.Stats().Used, uint64(0)
	for _, held := range s.held {
		if held.Room.Addr != 0 {
			rooms++
		}
	}
	retained := s.history.Stats().Blocks // some of them may be row blocks
	switch linked := uint64(len(c.rows)); {
	case linked != s.linked.Load() || linked+rooms > rows || linked+rooms+retained < rows:
		return corrupt("%d rows in chains, %d counted, %d rooms reserved, %d versions, %d blocks in use", linked, s.linked.Load(), rooms, retained, rows)
	case uint64(len(c.versions)) > retained:
		return corrupt("%d versions are reached, %d are retained", len(c.versions), retained)
	case c.tombs != s.tombs.Load() || c.tombs > uint64(s.graves.len()):
		return corrupt("%d tombstones in chains, %d counted, %d to be removed", c.tombs, s.tombs.Load(), s.graves.len())
	case c.overflow != over:
		return corrupt("%d overflow buckets in chains, %d in use", c.overflow, over)
	case c.held != len(s.held):
		return corrupt("%d locks are held, %d rows of them are linked", len(s.held), c.held)
	}
	return nil
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{index.ErrCorrupt}, args...)...)
}

// readBlock copies a block and applies both acceptance rules to it.
func (s *Server) readBlock(addr uint64, words int) ([]uint64, error) {
	sp, ok := s.arena.Region().Span(addr, uint64(words)*mem.WordBytes)
	if !ok || !goodAddr(addr, mem.LineBytes) {
		return nil, corrupt("block at %#x", addr)
	}
	buf := make([]uint64, words)
	sp.CopyOut(buf)
	if block.Header(buf[block.HeaderWord]).Locked() {
		return buf, nil
	}
	if s.arena.Checksums() && block.Accept(buf, 0, addr, false) != block.OK {
		return nil, corrupt("block at %#x does not have its checksum", addr)
	}
	return buf, nil
}

func (s *Server) checkRoot() error {
	w, err := s.readBlock(s.root, rootWords)
	if err != nil {
		return err
	}
	r, err := decodeRoot(w)
	if err != nil {
		return err
	}
	chunks := *s.chunks.Load()
	if r.strings != s.strings || r.rowWords != s.rowWords || r.dir != s.dir || r.buckets != s.buckets.Load() || r.chunks != uint64(len(chunks)) || r.geo != s.geo {
		return corrupt("root block says %+v", r)
	}
	dir, err := s.readBlock(s.dir, block.BodyWord+int(s.dirRoom))
	if err != nil {
		return err
	}
	for i, addr := range chunks {
		if dir[block.BodyWord+i] != addr {
			return corrupt("chunk %d: directory says %#x, not %#x", i, dir[block.BodyWord+i], addr)
		}
	}
	return nil
}

// checker collects the contents of the chains.
type checker struct {
	s        *Server
	rows     map[uint64]bool
	keys     map[index.Key]bool
	versions map[uint64]bool
	tombs    uint64
	overflow uint64
	held     int
	payload  []uint64 // of the row or version being checked
}

func (c *checker) checkChain(num uint64, level uint8) error {
	kind, version, dense := uint8(kindHead), uint64(0), true
	for addr := c.s.bucketAddr(num); addr != 0; {
		b, err := c.s.readBlock(addr, bucketWords)
		if err != nil {
			return err
		}
		link, h := b[linkWord], b[block.HeaderWord]
		switch {
		case block.Header(h).Locked() || block.Header(h).IsAbsent() || h == 0:
			return corrupt("bucket at %#x has header %v", addr, block.Header(h))
		case linkKind(link) != kind || kind == kindHead && linkLevel(link) != level:
			return corrupt("bucket at %#x is kind %#x level %d, want %#x %d", addr, linkKind(link), linkLevel(link), kind, level)
		case kind == kindOverflow && (h > version || b[slotWord] == 0):
			return corrupt("overflow bucket at %#x: version %d above its head's %d, or empty", addr, h, version)
		}
		if kind == kindHead {
			version = h
		} else {
			c.overflow++
		}
		for _, w := range b[slotWord:linkWord] {
			if w != 0 && !dense {
				return corrupt("bucket at %#x has a hole before it", addr)
			}
			dense = dense && w != 0
			if w == 0 {
				continue
			}
			if err := c.checkRow(w, num, level, version); err != nil {
				return err
			}
		}
		addr, kind = linkNext(link), kindOverflow
	}
	return nil
}

func (c *checker) checkRow(slot, num uint64, level uint8, version uint64) error {
	addr, words := refAddr(slotRef(slot)), c.s.rowBlock
	if c.s.strings {
		words = min(words, refClass(slot).Words())
	} else {
		addr = slotRef(slot)
	}
	if words == 0 || !goodAddr(addr, mem.LineBytes) || c.rows[addr] || c.versions[addr] {
		return corrupt("row address %#x is bad or linked twice", addr)
	}
	row, err := c.s.readBlock(addr, words)
	if err != nil {
		return err
	}
	key, err := c.s.keyOf(row)
	if err != nil {
		return fmt.Errorf("row at %#x: %w", addr, err)
	}
	h, hash, id := block.Header(row[block.HeaderWord]), c.s.hash(key), key.Num
	if c.s.strings {
		id = addr
	}
	held := c.s.held[id]
	switch {
	case c.keys[key]:
		return corrupt("key %v is linked twice", key)
	case !slotMatches(slot, hash) || !covers(num, level, hash):
		return corrupt("key %v is in a slot %#x that is not its own", key, slot)
	case h.Locked() != (held != nil) || held != nil && (held.Addr != addr || held.Key != key):
		return corrupt("key %v has header %v, held %+v", key, h, held)
	case h.IsAbsent() && (held == nil && h.CSN() == 0 || held != nil && held.Existed):
		return corrupt("key %v has header %v and is neither a placeholder nor a tombstone", key, h)
	case h.IsAbsent() && uint64(h.CSN()) > version:
		return corrupt("key %v was deleted at %v, its chain has version %d", key, h, version)
	}
	if held != nil {
		c.held++
	}
	if h.IsAbsent() && h.CSN() != 0 {
		c.tombs++
	}
	c.rows[addr], c.keys[key] = true, true
	c.payload = append(c.payload[:0], c.s.payloadOf(row)...)
	return c.checkVersions(key, h, block.Older(row[c.s.versions.OlderWord]))
}

// checkVersions verifies the versions of a row, as far as readers may follow them.
func (c *checker) checkVersions(key index.Key, h block.Header, older block.Older) error {
	for floor := c.s.history.Floor(); older != 0 && h.CSN().Tick() > floor; {
		addr, words := older.Addr(), c.s.rowBlock
		if c.s.strings || older.IsPatch() {
			words = min(words, older.Words())
		}
		if !older.Valid() || c.rows[addr] || c.versions[addr] {
			return corrupt("key %v: version at %#x is bad or reached twice", key, uint64(older))
		}
		c.versions[addr] = true
		v, err := c.s.readBlock(addr, words)
		if err != nil {
			return err
		}
		vh := block.Header(v[block.HeaderWord])
		switch {
		case c.s.arena.Checksums() && block.AcceptVersion(v, 0, addr, false) != block.OK:
			return corrupt("key %v: version at %#x does not have its checksum", key, addr)
		case !vh.Locked() || vh.CSN() == 0 || vh.CSN() >= h.CSN():
			return corrupt("key %v, header %v: the version below is %v", key, h, vh)
		}
		if err := c.checkVersion(key, older, v); err != nil {
			return err
		}
		h, older = vh, block.Older(v[c.s.versions.OlderWord])
	}
	return nil
}

// checkVersion verifies that a version is the key's, and that a patch fits the next
// newer row, whose payload is c.payload.
func (c *checker) checkVersion(key index.Key, older block.Older, v []uint64) error {
	if older.IsPatch() {
		if !c.s.patchOf(v[lengthWord], v[keyWord], key, len(c.payload)) || !older.Apply(patchWord, c.payload, v) {
			return corrupt("key %v: the version at %#x is no patch of a row of %d words", key, uint64(older), len(c.payload))
		}
		return nil
	}
	k, err := c.s.keyOf(v)
	if err == nil && k != key {
		err = corrupt("key %v: the version below is one of key %v", key, k)
	}
	c.payload = append(c.payload[:0], c.s.payloadOf(v)...)
	return err
}

// payloadOf returns the payload in a copy of a row or version.
func (s *Server) payloadOf(row []uint64) []uint64 {
	if !s.strings {
		return row[rowWord : rowWord+s.rowWords]
	}
	r, _ := decodeStrRow(row, s.tag)
	return r.row
}

// keyOf returns the key in a copy of a row.
func (s *Server) keyOf(row []uint64) (index.Key, error) {
	if !s.strings {
		return index.Num(row[keyWord]), nil
	}
	r, ok := decodeStrRow(row, s.tag)
	if !ok || len(r.row) > s.rowWords {
		return index.Key{}, corrupt("no row of this index: %#x", row[lengthWord])
	}
	return index.Str(string(r.key)), nil
}
