package stree

import "slices"

const (
	fanout = 64
	// refBytes is what an inner node and a ref take for one leaf, without the bytes of its low fence.
	refBytes = 128
)

// ref is what the server knows of a leaf. Immutable: a change of the fences makes a new one.
type ref struct {
	addr      uint64
	low, high string
	last      bool
	prefix    int    // length of what low and high share
	version   uint64 // the leaf's fence version
	fence     uint64 // pointer of the fence block, 0 if the leaf holds its fences
}

func newRef(addr uint64, low, high string, last bool) *ref {
	r := &ref{addr: addr, low: low, high: high, last: last}
	if !last {
		r.prefix = Common(low, high)
	}
	return r
}

func (r *ref) covers(key string) bool { return key >= r.low && (r.last || key < r.high) }

// Lows is a list of ascending strings that is searched by their digests.
type Lows struct {
	Keys    []string
	prefix  string
	digests []uint64
}

// NewLows makes a list of strings in ascending order, which it keeps.
func NewLows(keys []string) Lows {
	l := Lows{Keys: keys}
	if n := len(keys); n > 0 {
		l.prefix = keys[0][:Common(keys[0], keys[n-1])]
		l.digests = make([]uint64, n)
		for i, k := range keys {
			l.digests[i] = Digest(k[len(l.prefix):])
		}
	}
	return l
}

// Find is the last of the strings that is not above key; -1 if all are.
func (l *Lows) Find(key string) int {
	d := DigestAfter(l.prefix, key)
	lo, n := 0, len(l.digests)
	for n > 0 {
		half := n >> 1
		if l.digests[lo+half] < d {
			lo, n = lo+half+1, n-half-1
		} else {
			n = half
		}
	}
	hi := lo
	for step := 1; hi < len(l.digests) && l.digests[hi] == d; step *= 2 {
		hi = min(hi+step, len(l.digests))
	}
	// Between lo and hi are all that tie, and some that are above.
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); l.Keys[mid] <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// node is an inner node: immutable, so that readers need no care. A change
// copies the nodes on the way to the root.
type node struct {
	low  string // of the first child
	rest Lows   // low fences of the others
	refs []*ref // of a bottom node
	kids []*node
}

func newBottom(refs []*ref) *node {
	nd := &node{low: refs[0].low, refs: refs}
	keys := make([]string, len(refs)-1)
	for i, r := range refs[1:] {
		keys[i] = r.low
	}
	nd.rest = NewLows(keys)
	return nd
}

func newInner(kids []*node) *node {
	nd := &node{low: kids[0].low, kids: kids}
	keys := make([]string, len(kids)-1)
	for i, k := range kids[1:] {
		keys[i] = k.low
	}
	nd.rest = NewLows(keys)
	return nd
}

// search is the child that holds key.
func (nd *node) search(key string) int { return nd.rest.Find(key) + 1 }

// descend is the leaf of key according to a root.
func (nd *node) descend(key string) *ref {
	for nd.refs == nil {
		nd = nd.kids[nd.search(key)]
	}
	return nd.refs[nd.search(key)]
}

// edit is nd with other leaves in place of the one that holds key: no node, one or two.
func (nd *node) edit(key string, repl ...*ref) []*node {
	at := nd.search(key)
	if nd.refs != nil {
		refs := slices.Concat(nd.refs[:at], repl, nd.refs[at+1:])
		switch n := len(refs); {
		case n == 0:
			return nil
		case n > fanout:
			cut := fanout / 2
			if at == len(nd.refs)-1 { // keys that only rise leave full nodes behind
				cut = fanout
			}
			return []*node{newBottom(refs[:cut:cut]), newBottom(refs[cut:])}
		}
		return []*node{newBottom(refs)}
	}
	kids := slices.Concat(nd.kids[:at], nd.kids[at].edit(key, repl...), nd.kids[at+1:])
	kids = mergeThin(kids, at)
	switch n := len(kids); {
	case n == 0:
		return nil
	case n > fanout:
		cut := fanout / 2
		if at == len(nd.kids)-1 {
			cut = fanout
		}
		return []*node{newInner(kids[:cut:cut]), newInner(kids[cut:])}
	}
	return []*node{newInner(kids)}
}

func (nd *node) children() int { return len(nd.refs) + len(nd.kids) }

// mergeThin joins child i to the one before it if they are thin.
func mergeThin(kids []*node, i int) []*node {
	if i == 0 || i >= len(kids) || kids[i].children() >= fanout/4 || kids[i].children()+kids[i-1].children() > fanout*3/4 {
		return kids
	}
	a, b := kids[i-1], kids[i]
	if a.refs != nil {
		kids[i-1] = newBottom(slices.Concat(a.refs, b.refs))
	} else {
		kids[i-1] = newInner(slices.Concat(a.kids, b.kids))
	}
	return slices.Delete(kids, i, i+1)
}

// withRoot is the root over what an edit of the old one gave.
func withRoot(nodes []*node) *node {
	root := nodes[0]
	if len(nodes) > 1 {
		root = newInner(nodes)
	}
	for root.refs == nil && len(root.kids) == 1 {
		root = root.kids[0]
	}
	return root
}

// walk calls f for the leaves from the one that holds from on, until it returns false.
func (nd *node) walk(from string, f func(*ref) bool) bool {
	at := nd.search(from)
	for _, r := range nd.refs[min(at, len(nd.refs)):] {
		if !f(r) {
			return false
		}
	}
	for i, k := range nd.kids[min(at, len(nd.kids)):] {
		if i > 0 {
			from = k.low
		}
		if !k.walk(from, f) {
			return false
		}
	}
	return true
}

// Fences appends the low fences and addresses of the leaves from the one that
// holds from, up to but not including those whose low fence is at or above to
// (if bounded), at most limit of them. next is the low fence of the leaf after
// the last one appended, if more is true.
func (t *Tree) Fences(from, to string, bounded bool, limit int, lows []string, addrs []uint64) (l []string, a []uint64, next string, more bool) {
	t.root.Load().walk(from, func(r *ref) bool {
		if bounded && r.low >= to || limit == 0 {
			next, more = r.low, true
			return false
		}
		limit--
		lows, addrs = append(lows, r.low), append(addrs, r.addr)
		return true
	})
	return lows, addrs, next, more
}
