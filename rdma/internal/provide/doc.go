// Package provide is what the providers of the fabric share: who may enter an
// endpoint, how long to spin before sleeping, and queues that allocate nothing.
package provide
