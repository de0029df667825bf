// Package stall marks places at which a scheduler may hold a goroutine up for long, while others go on
// that must not rest on what it has yet to do. A simulation does so. Its goroutines are not held up
// elsewhere: one that waits with a mutex would stop the simulated time.
package stall
