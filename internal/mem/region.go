package mem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// WordBytes is the size of the unit of atomicity.
const WordBytes = 8

// LineBytes is the size and alignment of a cache line; remotely readable
// objects are made of whole lines.
const LineBytes = 64

// Default sizes used where an Options field is zero.
const (
	DefaultMaxBytes     = 64 << 30
	DefaultSegmentBytes = 16 << 20
	heapSegmentBytes    = 1 << 20
)

var (
	// ErrFull is returned by Grow when the region has reached MaxBytes.
	ErrFull = errors.New("mem: region is at its maximum size")
	// ErrReadOnly is returned by Grow on a region opened for reading.
	ErrReadOnly = errors.New("mem: region is mapped read-only")
	// ErrNoMemfd is returned when the caller requires shared memory and the
	// kernel has no memfd.
	ErrNoMemfd = errors.New("mem: memfd_create is not available")
	// ErrOptions is returned by New and Open for invalid sizes.
	ErrOptions = errors.New("mem: bad region options")
)

// Kind says where a region's bytes live.
type Kind uint8

const (
	// Auto is Shared where the kernel has memfd and Private elsewhere; Heap under
	// the tags race and invariants together.
	Auto Kind = iota
	// Heap keeps segments as Go slices: visible to the race detector.
	Heap
	// Private is anonymous mapped memory of this process.
	Private
	// Shared is memfds, sealed so that no other process can write them or
	// change their sizes.
	Shared
)

// Options describe a region. The zero value is a region of the default sizes.
type Options struct {
	Name         string // shown in /proc/PID/maps; for people only
	MaxBytes     uint64 // address space reserved; 0 means DefaultMaxBytes
	SegmentBytes uint64 // unit of growth, a power of two ≥ 4 KiB; 0 means the default for the kind
	Kind         Kind
}

// Region is growable memory addressed by byte offset. All methods are safe for
// concurrent use. The caller defines what the words mean.
type Region struct {
	opts     Options
	segShift uint
	segMask  uint64 // SegmentBytes - 1
	readOnly bool
	base     unsafe.Pointer // mapped kinds: start of the reservation
	segs     []atomic.Pointer[[]uint64]
	size     atomic.Uint64

	mu     sync.Mutex // serialises Grow and Attach
	files  []File     // of a Shared region that was made by New
	mapped uint64     // bytes in them

	collapsing sync.Mutex // one segment at a time gets huge pages
	smallPages bool       // the kernel has none; under collapsing
}

// New creates an empty region of at least one segment.
func New(o Options) (*Region, error) {
	if o.Kind == Auto {
		switch {
		case watched || !canMap:
			o.Kind = Heap
		case haveMemfd():
			o.Kind = Shared
		default:
			o.Kind = Private
		}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
		if o.Kind == Heap {
			o.SegmentBytes = heapSegmentBytes
		}
	}
	if o.SegmentBytes&(o.SegmentBytes-1) != 0 || o.SegmentBytes < 4096 || o.MaxBytes < o.SegmentBytes {
		return nil, fmt.Errorf("%w: segment %d bytes (want a power of two from 4096), maximum %d (want at least one segment)",
			ErrOptions, o.SegmentBytes, o.MaxBytes)
	}
	o.MaxBytes -= o.MaxBytes % o.SegmentBytes
	r := &Region{opts: o, segShift: log2(o.SegmentBytes), segMask: o.SegmentBytes - 1}
	if o.Kind == Heap {
		r.segs = make([]atomic.Pointer[[]uint64], o.MaxBytes>>r.segShift)
	} else if err := r.reserve(); err != nil {
		return nil, err
	}
	if _, err := r.Grow(); err != nil {
		return nil, err
	}
	return r, nil
}

func log2(v uint64) uint {
	n := uint(0)
	for v > 1 {
		v >>= 1
		n++
	}
	return n
}

// Size returns the number of bytes that can be addressed now. It only grows. Of
// a region that was opened for reading, it may include bytes that the owner
// does not use yet, which are zero.
func (r *Region) Size() uint64 { return r.size.Load() }

// SegmentBytes returns the unit of growth. No block may straddle two segments.
func (r *Region) SegmentBytes() uint64 { return r.opts.SegmentBytes }

// MaxBytes returns the size up to which the region can grow.
func (r *Region) MaxBytes() uint64 { return r.opts.MaxBytes }

// Kind says where the bytes live.
func (r *Region) Kind() Kind { return r.opts.Kind }

// Grow appends one segment of zeroes and returns its offset.
func (r *Region) Grow() (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readOnly {
		return 0, ErrReadOnly
	}
	off := r.size.Load()
	if off+r.opts.SegmentBytes > r.opts.MaxBytes {
		return 0, fmt.Errorf("%w (%d bytes)", ErrFull, r.opts.MaxBytes)
	}
	if r.opts.Kind == Heap {
		s := make([]uint64, r.opts.SegmentBytes/WordBytes)
		r.segs[off>>r.segShift].Store(&s)
	} else if err := r.extend(off + r.opts.SegmentBytes); err != nil {
		return 0, err
	}
	r.size.Store(off + r.opts.SegmentBytes)
	return off, nil
}

// Span gives access to the n bytes at off. It reports false, and touches
// nothing, when off or n is not a multiple of 8, or the bytes do not lie within
// one segment of the region. The bounds check of frames from the network relies
// on this.
func (r *Region) Span(off, n uint64) (Span, bool) {
	// The size is whole segments, so what begins below it and lies in one segment
	// lies below it. Nothing here can overflow, but 0-1, which is refused.
	if r.base != nil && (off|n)&(WordBytes-1) == 0 && off < r.size.Load() && n-1 <= r.segMask-off&r.segMask {
		return Span{unsafe.Add(r.base, off), int(n / WordBytes)}, true
	}
	return r.spanElse(off, n)
}

// spanElse is Span for rare cases: a region on the Go heap, no bytes, or an invalid
// range.
func (r *Region) spanElse(off, n uint64) (Span, bool) {
	if (off|n)&(WordBytes-1) != 0 || n > r.opts.SegmentBytes ||
		off&r.segMask+n > r.opts.SegmentBytes || off >= r.opts.MaxBytes || off+n > r.Size() {
		return Span{}, false
	}
	if n == 0 {
		return Span{}, true
	}
	if r.base != nil {
		return Span{unsafe.Add(r.base, off), int(n / WordBytes)}, true
	}
	seg := *r.segs[off>>r.segShift].Load()
	return Span{unsafe.Pointer(&seg[off&r.segMask/WordBytes]), int(n / WordBytes)}, true
}

// MustSpan is Span for offsets that the caller allocated. It panics on a bad
// offset: that is a broken invariant, never the result of input.
func (r *Region) MustSpan(off, n uint64) Span {
	s, ok := r.Span(off, n)
	if !ok {
		panic(fmt.Sprintf("mem: span [%d,+%d) outside region of %d bytes", off, n, r.Size()))
	}
	return s
}

// Address returns the address at which this process maps the byte at off, below
// MaxBytes, so that the caller can register it with a device. The caller must
// keep the region alive while the device may use it. Address reports false for
// a region on the Go heap, which must not be registered.
func (r *Region) Address(off uint64) (uintptr, bool) {
	if r.base == nil || off >= r.opts.MaxBytes {
		return 0, false
	}
	return uintptr(unsafe.Add(r.base, off)), true
}

// Read copies len(dst) words at off in ascending order, each word atomically.
func (r *Region) Read(off uint64, dst []uint64) bool {
	s, ok := r.Span(off, uint64(len(dst))*WordBytes)
	if !ok || len(dst) == 0 {
		return ok
	}
	s.CopyOut(dst)
	runtime.KeepAlive(r)
	return true
}

// Fetch is Read as a READ does it: it returns the first word, loaded again after
// the last one. It reports false, too, if dst is empty.
func (r *Region) Fetch(off uint64, dst []uint64) (tail uint64, ok bool) {
	s, ok := r.Span(off, uint64(len(dst))*WordBytes)
	if !ok || len(dst) == 0 {
		return 0, false
	}
	loadWords(unsafe.Pointer(&dst[0]), s.p, len(dst))
	pause()
	tail = atomic.LoadUint64((*uint64)(s.p))
	runtime.KeepAlive(r)
	return tail, true
}
