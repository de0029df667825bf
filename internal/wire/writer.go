package wire

import "drtmx/internal/placement"

// Steps of an OpWriter, which a client sends to write an index one-sided.
const (
	WriterOpen   = 0 // become a writer of an index in a partition
	WriterExtend = 1 // get leaves for splits
)

// WriterRequest is an OpWriter request.
type WriterRequest struct {
	Step      byte
	Partition placement.Partition
	Index     int
	// Catalog is the version of the catalogue in which the client writes.
	Catalog int
	// Name is what the client calls the writer: the client half of the IDs of its transactions.
	Name uint64
	// Owner is the writer's number in the index, for WriterExtend.
	Owner uint16
}

// Opened is the answer to WriterOpen: see rolex.Opened and rolex.Options.
type Opened struct {
	ID           uint32
	Owner        uint16
	Key          uint32
	Fence, First uint64
	SlotsPerLeaf uint16
	Writers      uint16
	Checksums    bool
}

// Spare is a leaf for a split: see rolex.Spare.
type Spare struct{ Addr, Header uint64 }

// Append appends the request with its op byte.
func (q *WriterRequest) Append(b []byte) []byte {
	b = appendPartition(append(b, byte(OpWriter), q.Step), q.Partition)
	b = le.AppendUint64(le.AppendUint32(le.AppendUint16(b, uint16(q.Index)), uint32(q.Catalog)), q.Name)
	return le.AppendUint16(b, q.Owner)
}

// Decode decodes the output of Append after the op byte.
func (q *WriterRequest) Decode(d *Decoder) error {
	*q = WriterRequest{Step: d.U8(), Partition: d.Partition(), Index: int(d.U16()), Catalog: int(d.U32()), Name: d.U64(), Owner: d.U16()}
	d.bad = d.bad || q.Step > WriterExtend
	return d.End()
}

// Append appends the answer.
func (o *Opened) Append(b []byte) []byte {
	b = le.AppendUint32(le.AppendUint16(le.AppendUint32(b, o.ID), o.Owner), o.Key)
	b = le.AppendUint64(le.AppendUint64(b, o.Fence), o.First)
	b = le.AppendUint16(le.AppendUint16(b, o.SlotsPerLeaf), o.Writers)
	if o.Checksums {
		return append(b, 1)
	}
	return append(b, 0)
}

// Decode decodes the output of Append.
func (o *Opened) Decode(d *Decoder) error {
	*o = Opened{ID: d.U32(), Owner: d.U16(), Key: d.U32(), Fence: d.U64(), First: d.U64(), SlotsPerLeaf: d.U16(), Writers: d.U16()}
	sums := d.U8()
	d.bad, o.Checksums = d.bad || sums > 1, sums == 1
	return d.End()
}

// AppendSpares appends leaves for splits.
func AppendSpares(b []byte, spares []Spare) []byte {
	b = le.AppendUint32(b, uint32(len(spares)))
	for _, s := range spares {
		b = le.AppendUint64(le.AppendUint64(b, s.Addr), s.Header)
	}
	return b
}

// Spares decodes the output of AppendSpares.
func (d *Decoder) Spares() (spares []Spare) {
	for range d.Count(MaxSpares, 16) {
		spares = append(spares, Spare{d.U64(), d.U64()})
	}
	return spares
}

// MaxSpares bounds the leaves of one answer.
const MaxSpares = 1 << 10
