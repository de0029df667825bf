package rolex

import (
	"cmp"
	"fmt"
	"slices"

	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// image is a private copy of a leaf, to be changed. Its header is that of the leaf as it was
// READ; seal sets what the leaf shall have.
type image struct {
	l *layout
	w []uint64
}

// usedHead is the word of a slot in use. The header of the leaf proves the row.
var usedHead = uint64(block.Present(block.NewCSN(1, 1)))

func (m image) clone() image { return image{m.l, slices.Clone(m.w)} }

// blank makes the image an empty leaf with fences.
func (m image) blank(low, high uint64, last bool, right uint64) {
	clear(m.w[block.ChecksumWord:])
	for i := range m.l.Slots {
		m.w[m.l.HeadsAt+i] = m.l.FreeHead
	}
	m.w[leaf.LowWord], m.w[leaf.HighWord], m.w[leaf.RightWord] = low, high, right
	m.w[leaf.MetaWord] = m.l.Pack(leaf.Meta{Last: last, Newest: leaf.NoNewest})
	m.arrange()
}

func (m image) meta() leaf.Meta { return leaf.Unpack(m.w[leaf.MetaWord]) }

func (m image) header() Header { return Header(m.w[block.HeaderWord]) }

func (m image) low() uint64 { return m.w[leaf.LowWord] }

// covers reports whether a key is within the fences.
func (m image) covers(key uint64) bool { return key >= m.low() && !m.above(key) }

// above reports whether a key is above the fences.
func (m image) above(key uint64) bool {
	return !leaf.IsLast(m.w[leaf.MetaWord]) && key >= m.w[leaf.HighWord]
}

func (m image) right() uint64 { return m.w[leaf.RightWord] }

func (m image) inUse(i int) bool { return m.w[m.l.HeadsAt+i] != m.l.FreeHead }

// find returns the slot of a key, -1 if there is none.
func (m image) find(key uint64) int {
	for i := range m.l.Slots {
		if m.w[m.l.KeysAt+i] == key && m.inUse(i) {
			return i
		}
	}
	return -1
}

// row returns the row in a slot, a view.
func (m image) row(i int) []uint64 {
	at := m.l.RowsAt + i*m.l.RowWords
	return m.w[at : at+m.l.RowWords]
}

// put sets the row of a key, and reports false if there is no room.
func (m image) put(key uint64, row []uint64) bool {
	i := m.find(key)
	if i < 0 {
		for i = 0; i < m.l.Slots && m.inUse(i); i++ {
		}
		if i == m.l.Slots {
			return false
		}
		m.w[m.l.KeysAt+i], m.w[m.l.HeadsAt+i] = key, usedHead
		m.arrange()
	}
	copy(m.row(i), row)
	return true
}

// remove removes a key, and reports whether it was there.
func (m image) remove(key uint64) bool {
	i := m.find(key)
	if i < 0 {
		return false
	}
	m.w[m.l.HeadsAt+i] = m.l.FreeHead
	m.arrange()
	return true
}

// split moves rows to right, an image of a leaf at rightAddr, so that there is room for key in
// the leaf that covers it then. Keys that arrive in order leave full leaves behind.
func (m image) split(right image, rightAddr, key uint64) {
	order := m.order()
	stay := len(order) / 2
	if m.w[m.l.KeysAt+int(order[len(order)-1])] < key {
		stay = len(order)
	}
	fence := key
	if stay < len(order) {
		fence = m.w[m.l.KeysAt+int(order[stay])]
	}
	right.blank(fence, m.w[leaf.HighWord], m.meta().Last, m.right())
	for _, i := range order[stay:] {
		right.put(m.w[m.l.KeysAt+int(i)], m.row(int(i)))
		m.w[m.l.HeadsAt+int(i)] = m.l.FreeHead
	}
	m.w[leaf.HighWord], m.w[leaf.RightWord] = fence, rightAddr
	meta := m.meta()
	meta.Last = false
	m.w[leaf.MetaWord] = m.l.Pack(meta)
	m.arrange()
}

// order returns the slots in use in the order of their keys. It is a view.
func (m image) order() []byte {
	return mem.Bytes(m.w[m.l.OrderAt : m.l.OrderAt+m.l.OrderWords])[:m.meta().Live]
}

// arrange brings order and meta word in step with the slots in use.
func (m image) arrange() {
	all := mem.Bytes(m.w[m.l.OrderAt : m.l.OrderAt+m.l.OrderWords])
	meta := m.meta()
	meta.Live, meta.Count, meta.Newest = 0, 0, leaf.NoNewest
	spare := m.l.Slots
	for i := m.l.Slots - 1; i >= 0; i-- {
		if !m.inUse(i) {
			spare--
			all[spare] = byte(i)
		}
	}
	for i := range m.l.Slots {
		if m.inUse(i) {
			all[meta.Live] = byte(i)
			meta.Live++
			meta.Count = i + 1
		}
	}
	slices.SortFunc(all[:meta.Live], func(a, b byte) int {
		return cmp.Compare(m.w[m.l.KeysAt+int(a)], m.w[m.l.KeysAt+int(b)])
	})
	m.w[leaf.MetaWord] = m.l.Pack(meta)
}

// seal sets the header that the leaf will have, and its checksum.
func (m image) seal(addr uint64, h Header) {
	m.w[block.HeaderWord] = uint64(h)
	if m.l.checksums {
		m.w[block.ChecksumWord] = block.Checksum(addr, m.w)
	}
}

// accept reports whether a copy of a leaf READ from addr is of one version, and not held.
func (m image) accept(addr, tail uint64, inOrder bool) bool {
	return block.Accept(m.w, tail, addr, inOrder) == block.OK
}

// check returns what is wrong with an accepted image of a live leaf.
func (m image) check(addr uint64) error {
	v, ok := m.l.View(m.w)
	if !ok {
		return fmt.Errorf("rolex: leaf %#x: it is no leaf of the index", addr)
	}
	if _, ok := v.Order(); !ok {
		return fmt.Errorf("rolex: leaf %#x: its order is wrong", addr)
	}
	for i := range m.l.Slots {
		switch key := m.w[m.l.KeysAt+i]; {
		case !m.inUse(i):
		case i >= v.Count(): // the order does not have it: the leaf would be full, and have nothing to split
			return fmt.Errorf("rolex: leaf %#x: slot %d is in use, of %d", addr, i, v.Count())
		case m.w[m.l.HeadsAt+i] != usedHead:
			return fmt.Errorf("rolex: leaf %#x: slot %d has head %#x", addr, i, m.w[m.l.HeadsAt+i])
		case !m.covers(key):
			return fmt.Errorf("rolex: leaf %#x: key %d is outside its fences", addr, key)
		}
	}
	if m.l.checksums && m.w[block.ChecksumWord] != block.Checksum(addr, m.w) {
		return fmt.Errorf("rolex: leaf %#x: its checksum is wrong", addr)
	}
	return nil
}
