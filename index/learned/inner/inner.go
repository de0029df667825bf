// Package inner is the layout of inner nodes that a data server publishes for clients
// which cache them instead of models: the tree cache of Cell (Mitchell et al., "Balancing
// CPU and Network in the Cell Distributed B-Tree Store", USENIX ATC 2016), a rival of the
// learned cache. docs/layouts.md has the table.
//
// A published node is a copy of a node of the server's tree, a little younger or older
// than the leaves: it is a hint, like a model. The fences of the leaf to which it leads
// prove an answer.
package inner

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Sizes of published nodes.
const (
	// Fanout is the maximum number of children.
	Fanout = 64
	// DepthMax is the maximum number of levels: 32^12 leaves are more than a region can
	// hold.
	DepthMax = 12
	// Words is the size of the block of a node, however many children it has.
	Words = (childrenWord + Fanout + lineWords - 1) / lineWords * lineWords

	lineWords = mem.LineBytes / mem.WordBytes
)

const (
	idWord       = block.BodyWord
	shapeWord    = 3 // level, bounded, number of children
	highWord     = 4
	lowsWord     = 5
	childrenWord = lowsWord + Fanout

	magic      = 0x584c4e31
	boundedBit = 1 << 16
)

// Node is an inner node of native keys. In a decoded one the slices are views into the
// block.
type Node struct {
	Level   int    // of its children: 0 means leaves
	High    uint64 // the first key above the node, if Bounded
	Bounded bool
	// Lows are the low fences of the children, in ascending order; the first is that of the
	// node. Children are the addresses of leaves or of published nodes, 0 for a node that is
	// not published.
	Lows, Children []uint64
}

func tag(id uint32) uint64 { return magic<<32 | uint64(id) }

// AppendBody appends the words of the node's block after the checksum. id is that of the
// index, see leaf.Layout.
func (n *Node) AppendBody(dst []uint64, id uint32) []uint64 {
	shape := uint64(n.Level)<<32 | uint64(len(n.Lows))
	if n.Bounded {
		shape |= boundedBit
	}
	dst = append(dst, tag(id), shape, n.High)
	from := len(dst)
	dst = append(dst, make([]uint64, Words-lowsWord)...)
	copy(dst[from:], n.Lows)
	copy(dst[from+Fanout:], n.Children)
	return dst
}

// Decode decodes an accepted copy of a block. It checks what a reader relies on to end; the
// fences and addresses may be any numbers.
func Decode(b []uint64, id uint32) (n Node, err error) {
	if len(b) != Words || b[idWord] != tag(id) {
		return n, fmt.Errorf("%w: no inner node", index.ErrCorrupt)
	}
	shape := b[shapeWord]
	level, count := shape>>32, shape&(boundedBit-1)
	if level >= DepthMax || count == 0 || count > Fanout || shape&0xffffffff&^(boundedBit-1)&^boundedBit != 0 {
		return n, fmt.Errorf("%w: inner node of shape %#x", index.ErrCorrupt, shape)
	}
	return Node{
		Level: int(level), High: b[highWord], Bounded: shape&boundedBit != 0,
		Lows: b[lowsWord : lowsWord+count : lowsWord+count], Children: b[childrenWord : childrenWord+count : childrenWord+count],
	}, nil
}

// Covers reports whether the node's fences cover a key.
func (n *Node) Covers(key uint64) bool { return key >= n.Lows[0] && (!n.Bounded || key < n.High) }

// Search returns the last child whose low fence is at or below key, or the first.
func (n *Node) Search(key uint64) int {
	at, size := 0, len(n.Lows)
	for size > 1 { // without unpredictable branches
		half := size / 2
		if n.Lows[at+half] <= key {
			at += half
		}
		size -= half
	}
	return at
}
