package learned

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
)

// directory is the directory of a generation: its router, and the places of
// sub-models and their pointers.
type directory struct {
	gen      genBlock
	router   *model.Router // of native keys
	strs     *strRouter    // of string keys
	pointers []uint64      // as read with the chunks
}

// trained reports whether there is a generation.
func (d *directory) trained() bool { return d.router != nil || d.strs != nil }

// newDirectory reads and decodes the chunks of a generation.
func newDirectory(root *rootBlock, g *genBlock, read func(chunkBlock) ([]uint64, error)) (d directory, err error) {
	d.gen = *g
	var nums []uint64
	var strs []string
	for i, c := range g.chunks {
		b, err := read(c)
		if err != nil {
			return d, err
		}
		var p []uint64
		if root.strings() {
			strs, p, err = decodeStrChunk(root, g, i, b, strs)
		} else {
			var n []uint64
			n, p, err = decodeChunk(root, g, i, b)
			nums = append(nums, n...)
		}
		if err != nil {
			return d, err
		}
		d.pointers = append(d.pointers, p...)
	}
	if root.strings() {
		d.strs, err = newStrRouter(strs)
	} else if d.router, err = model.NewRouter(nums); err != nil {
		err = fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	return d, err
}

// decode decodes the block of sub-model i.
func (d *directory) decode(id uint32, i int, b []uint64, s *model.SubModel) (subBlock, error) {
	if d.strs != nil {
		return decodeStrSub(id, d.strs.Start(i), b, s)
	}
	return decodeSub(id, d.router.Start(i), b, s)
}

// same returns the sub-model of an older directory that has the same start as
// sub-model i, -1 if there is none.
func (d *directory) same(old *directory, i int) int {
	switch {
	case d.strs != nil && old.strs != nil:
		if j := old.strs.Route(d.strs.Start(i)); old.strs.Start(j) == d.strs.Start(i) {
			return j
		}
	case d.router != nil && old.router != nil:
		if j := old.router.Route(d.router.Start(i)); old.router.Start(j) == d.router.Start(i) {
			return j
		}
	}
	return -1
}

// routerBytes is the memory that the router takes.
func (d *directory) routerBytes() int {
	if d.strs != nil {
		return d.strs.Bytes()
	}
	return d.router.Bytes()
}

// strRouter finds the sub-model of a string key: by the digest after what all
// starts but the first, which is "", have in common, and where digests tie by
// the starts themselves. It is immutable.
type strRouter struct {
	prefix string
	top    *model.Router // the distinct digests; nil if there is one sub-model
	from   []uint32      // the first start of each digest, and the number of starts
	bytes  string        // all starts
	ends   []uint32
}

func newStrRouter(starts []string) (*strRouter, error) {
	r := &strRouter{}
	size := 0
	for i, s := range starts {
		if i == 0 && s != "" || i > 0 && s <= starts[i-1] || len(s) > index.MaxKeyBytes {
			return nil, fmt.Errorf("%w: start %d of the sub-models is %q", index.ErrCorrupt, i, s)
		}
		size += len(s)
	}
	if n := len(starts); n == 0 || n > maxSubModels {
		return nil, fmt.Errorf("%w: router of %d sub-models", index.ErrCorrupt, n)
	}
	b := make([]byte, 0, size)
	for _, s := range starts {
		b = append(b, s...)
		r.ends = append(r.ends, uint32(len(b)))
	}
	r.bytes = mem.String(b)
	if len(starts) == 1 {
		return r, nil
	}
	r.prefix = r.Start(1)[:leaf.Common(starts[1], starts[len(starts)-1])]
	var digests []uint64
	for i, s := range starts[1:] {
		if d := leaf.DigestAfter(r.prefix, s); i == 0 || d != digests[len(digests)-1] {
			digests = append(digests, d)
			r.from = append(r.from, uint32(i+1))
		}
	}
	r.from = append(r.from, uint32(len(starts)))
	var err error
	r.top, err = model.NewRouter(digests)
	return r, err
}

// Route is the sub-model of a key.
func (r *strRouter) Route(key string) int {
	if r.top == nil {
		return 0
	}
	g := r.top.Route(leaf.DigestAfter(r.prefix, key))
	lo, hi := int(r.from[g]), int(r.from[g+1])
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); r.Start(mid) <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// Start is the first key of sub-model i.
func (r *strRouter) Start(i int) string {
	from := uint32(0)
	if i > 0 {
		from = r.ends[i-1]
	}
	return r.bytes[from:r.ends[i]]
}

// Bytes is the memory that the router takes.
func (r *strRouter) Bytes() int {
	n := len(r.bytes) + 4*len(r.ends) + 4*len(r.from)
	if r.top != nil {
		n += r.top.Bytes()
	}
	return n
}
