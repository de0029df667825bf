package server

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// leafRegion is a region with the leaves of one index.
type leafRegion struct {
	region *mem.Region
	number uint16 // in proofs
	key    rdma.RKey
	device device
}

// newLeaves makes the region of an index, as large as the partition's may become.
func (p *partition) newLeaves(ix *tables.Index) (*leafRegion, error) {
	cfg := &p.srv.cfg
	r, err := mem.New(mem.Options{Name: fmt.Sprintf("p%d.%d", p.id, ix.ID), MaxBytes: cfg.MemoryBytes, SegmentBytes: cfg.segment})
	if err != nil {
		return nil, err
	}
	key, err := p.srv.ep.Register(r, rdma.AccessRead)
	return &leafRegion{region: r, number: wire.RegionOf(ix.ID), key: key}, err
}

// inMemoryOnly is the refusal of an index that a durable data server cannot have.
func inMemoryOnly(ix *tables.Index) error {
	return fmt.Errorf("%w: table %s: %s keeps data in memory only, and the data server has a data directory", tables.ErrSchema, ix.Table.Name(), ix.MadeBy())
}

// proved is an index with proofs of its own: see rolex.Server.
type proved interface {
	Holds(p index.Proof, o index.Owner) bool
	Share(p index.Proof, o index.Owner) bool
	Unshare(proof uint64, o index.Owner)
}

// inLeaves returns the index in whose region a proof is, nil if that is the partition's or unknown.
func (p *partition) inLeaves(addr uint64) proved {
	number, _ := index.RegionOf(addr)
	if number == 0 {
		return nil
	}
	return p.leavesIn(number)
}

// leavesIn returns the index whose leaves are in the region with a number, nil if there is none.
func (p *partition) leavesIn(number uint16) proved {
	indexes := p.has.Load().indexes
	if id := wire.IndexOf(number); id < len(indexes) && indexes[id].leaves != nil {
		return indexes[id].Server.(proved)
	}
	return nil
}

// stillHold checks the proofs in regions of leaves for a transaction that has locked its writes.
// Writers may change a leaf at any time, so that a look before the locks proves nothing.
func (p *partition) stillHold(part *wire.Part, o index.Owner) verdict {
	if !p.has.Load().apart {
		return verdict{}
	}
	apart := func(pr index.Proof) bool {
		number, _ := index.RegionOf(pr.Addr)
		return number != 0
	}
	for _, pr := range part.Rows {
		if apart(pr) && !p.holds(pr, o) {
			return conflict(exec.CauseRow)
		}
	}
	for _, pr := range part.Gaps {
		if apart(pr) && !p.holds(pr, o) {
			return conflict(exec.CauseGap)
		}
	}
	return verdict{}
}
