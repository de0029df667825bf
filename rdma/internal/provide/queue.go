package provide

import "sync/atomic"

// Signal wakes the goroutine that receives from a channel of capacity 1. An
// earlier signal that it has not received yet stays.
func Signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Node is an element of a Queue. Its owner embeds or keeps it, so that queueing
// allocates nothing, and may push it again as soon as it was taken.
type Node[T any] struct {
	next  *Node[T]
	Value T
}

// Next returns the node that was pushed after n, among those taken with it.
func (n *Node[T]) Next() *Node[T] { return n.next }

// Queue is what a poller has to do: a stack to which any goroutine pushes, and
// which the poller takes whole. The zero value is empty.
type Queue[T any] struct{ top atomic.Pointer[Node[T]] }

// Push adds a node. It reports whether the queue was empty: if not, the pusher
// of an earlier node wakes the poller.
func (q *Queue[T]) Push(n *Node[T]) (first bool) {
	for {
		top := q.top.Load()
		n.next = top
		if q.top.CompareAndSwap(top, n) {
			return top == nil
		}
	}
}

// Empty reports whether there is nothing to take.
func (q *Queue[T]) Empty() bool { return q.top.Load() == nil }

// Take empties the queue and returns the oldest node, nil if there is none.
func (q *Queue[T]) Take() *Node[T] {
	var first *Node[T]
	for n := q.top.Swap(nil); n != nil; {
		next := n.next
		n.next, first = first, n
		n = next
	}
	return first
}
