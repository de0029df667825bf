package wire

import (
	"drtmx/internal/placement"
)

// PlacesRequest is an OpPlaces: the data server of a twin asks where the rows of some keys are. See package
// server, rowplaces.go.
type PlacesRequest struct {
	// Partition has the rows.
	Partition placement.Partition
	// Index is the twin.
	Index uint16
	// Keys are numbers: rows of string keys move.
	Keys []uint64
}

// MaxPlaces bounds the keys of a request.
const MaxPlaces = 64

// Append appends the request.
func (p *PlacesRequest) Append(b []byte) []byte {
	b = le.AppendUint16(appendPartition(append(b, byte(OpPlaces)), p.Partition), p.Index)
	return appendWords(b, p.Keys)
}

// Decode decodes the output of Append after the op byte. It reuses the memory of p.Keys.
func (p *PlacesRequest) Decode(d *Decoder) error {
	p.Partition, p.Index = d.Partition(), d.U16()
	p.Keys = d.words(p.Keys[:0], MaxPlaces)
	return d.End()
}

// AppendPlaces appends the answer to a PlacesRequest, after the verdict: for each key the address of its
// row, or 0.
func AppendPlaces(b []byte, places []uint64) []byte { return appendWords(b, places) }

// Places decodes the output of AppendPlaces, which must have n places. It reuses the memory of dst.
func (d *Decoder) Places(dst []uint64, n int) ([]uint64, error) {
	dst = d.words(dst[:0], MaxPlaces)
	d.bad = d.bad || len(dst) != n
	return dst, d.End()
}

func appendWords(b []byte, words []uint64) []byte {
	b = le.AppendUint32(b, uint32(len(words)))
	for _, w := range words {
		b = le.AppendUint64(b, w)
	}
	return b
}

func (d *Decoder) words(dst []uint64, most int) []uint64 {
	for range d.Count(most, 8) {
		dst = append(dst, d.U64())
	}
	return dst
}
