package hist

import (
	"encoding/binary"
	"errors"
	"math"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// ErrCorrupt is returned when bytes do not decode to a histogram.
var ErrCorrupt = errors.New("hist: corrupt encoded histogram")

// codecVersion begins every encoding; it changes with the layout or with the
// geometry of the buckets.
const codecVersion = 1

// bucketCount is the number of counters in a histogram's geometry.
var bucketCount = len(hdr.New(1, MaxNs, significantDigits).Export().Counts)

// MarshalBinary encodes h so that a client process can send it to the one that
// merges. The layout is the version byte, then varints: clamped, minimum,
// maximum, the bits of the sum, and for each counter that is not zero its
// distance from the previous one and its value. The error is always nil.
func (h *Histogram) MarshalBinary() ([]byte, error) {
	b := []byte{codecVersion}
	b = binary.AppendUvarint(b, uint64(h.clamped))
	b = binary.AppendUvarint(b, uint64(h.minNs))
	b = binary.AppendUvarint(b, uint64(h.maxNs))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(h.sumNs))
	last := -1
	for i, c := range h.counts.Export().Counts {
		if c != 0 {
			b = binary.AppendUvarint(b, uint64(i-last))
			b = binary.AppendUvarint(b, uint64(c))
			last = i
		}
	}
	return b, nil
}

// UnmarshalBinary replaces h by what MarshalBinary encoded. It returns
// [ErrCorrupt] and leaves h alone if the bytes are anything else. It allocates
// no more than one histogram whatever the bytes say. The zero Histogram may be
// the receiver.
func (h *Histogram) UnmarshalBinary(b []byte) error {
	d := decoder{rest: b}
	if d.byte() != codecVersion {
		return ErrCorrupt
	}
	clamped, minNs, maxNs := d.count(), d.count(), d.count()
	sumNs := d.float()
	counts := make([]int64, bucketCount)
	total, at := int64(0), int64(-1)
	for len(d.rest) > 0 && !d.bad {
		step, n := d.count(), d.count()
		if d.bad || step < 1 || step >= int64(bucketCount)-at || n < 1 || n > math.MaxInt64-total {
			return ErrCorrupt
		}
		at += step
		counts[at] = n
		total += n
	}
	empty := total == 0 && minNs == math.MaxInt64 && maxNs == 0 && sumNs == 0 && clamped == 0
	full := total > 0 && minNs <= maxNs && maxNs <= MaxNs && clamped <= total &&
		sumNs >= 0 && sumNs <= float64(total)*float64(MaxNs)
	if d.bad || !(empty || full) {
		return ErrCorrupt
	}
	*h = Histogram{
		counts: hdr.Import(&hdr.Snapshot{
			LowestTrackableValue:           1,
			HighestTrackableValue:          MaxNs,
			SignificantFigures:             significantDigits,
			Counts:                         counts,
			IntegerToDoubleConversionRatio: 1,
		}),
		sumNs: sumNs, minNs: minNs, maxNs: maxNs, clamped: clamped,
	}
	return nil
}

// decoder reads fields off the front of rest; bad sticks once one is missing.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.bad = true
		return 0
	}
	v := d.rest[0]
	d.rest = d.rest[1:]
	return v
}

func (d *decoder) count() int64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > math.MaxInt64 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return int64(v)
}

func (d *decoder) float() float64 {
	if len(d.rest) < 8 {
		d.bad = true
		return 0
	}
	v := math.Float64frombits(binary.LittleEndian.Uint64(d.rest))
	d.rest = d.rest[8:]
	return v
}
