package rolex

import (
	"fmt"

	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Layout of the region: a control block, a slot for each writer, leaves.
const (
	controlAddr = mem.LineBytes // address 0 is nil
	slotsAddr   = 4096
	slotBytes   = 16 << 10
	slotWords   = slotBytes / mem.WordBytes

	// Words of the control block, which writers READ when they lock.
	fenceWord    = 0 // raised when writers must open the index again
	busyWord     = 1 // not 0 while transactions wait at the data server: see Server.Busy
	controlWords = 2
)

// Options describe an index. Servers and writers have the same.
type Options struct {
	RowWords     int
	SlotsPerLeaf int // 0 chooses leaves of about a KiB
	Writers      int // how many there may be at a time; 0 means 64
	// Checksums keeps a checksum in every leaf, for readers over a fabric that does not
	// read in order.
	Checksums bool
}

// layout is the geometry of an index.
type layout struct {
	leaf.Layout
	writers   int
	checksums bool
	leavesAt  uint64 // the lowest address of a leaf
}

func newLayout(id uint32, o Options) (*layout, error) {
	slots := o.SlotsPerLeaf
	if slots == 0 {
		slots = leaf.AutoSlots(leaf.Written, o.RowWords)
	}
	if o.Writers == 0 {
		o.Writers = 64
	}
	if o.Writers < 1 || o.Writers > MaxOwner {
		return nil, fmt.Errorf("rolex: %d writers (want 1 to %d)", o.Writers, MaxOwner)
	}
	l, err := leaf.NewLayout(id, leaf.Written, o.RowWords, slots)
	if err != nil {
		return nil, err
	}
	if n := l.LeafBytes(); n > rdma.MaxReadBytes {
		return nil, fmt.Errorf("rolex: leaves of %d bytes (at most %d)", n, rdma.MaxReadBytes)
	}
	end := uint64(slotsAddr + o.Writers*slotBytes)
	return &layout{Layout: l, writers: o.Writers, checksums: o.Checksums, leavesAt: (end + l.LeafBytes() - 1) / l.LeafBytes() * l.LeafBytes()}, nil
}

// mayBe reports whether a leaf can be at an address, if the region is large enough.
func (l *layout) mayBe(addr uint64) bool { return addr >= l.leavesAt && addr%l.LeafBytes() == 0 }

// slotAddr is the address of a writer's slot.
func (l *layout) slotAddr(o Owner) uint64 { return slotsAddr + uint64(o-1)*slotBytes }
