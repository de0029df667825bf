package sim

import "time"

// Effort is how long an operation of a file system takes.
type Effort uint8

// The efforts, from the least.
const (
	Looks   Effort = iota // it changes nothing
	Changes               // it changes what a crash may leave
	Syncs                 // it makes something durable
)

// Disk is one operation of a file system of a process: it takes time, and is an
// event. Call it before the operation, without a lock.
func (w *World) Disk(name, op, file string, e Effort) {
	switch e {
	case Looks:
		time.Sleep(w.draw(1, diskMin, w.swarm.disk))
	case Changes:
		time.Sleep(w.draw(diskMin, diskMax, w.swarm.disk))
	case Syncs:
		time.Sleep(w.draw(diskMin, syncMax, w.swarm.sync))
	}
	_ = w.Runs(name) // nobody will have what a dead process does
	w.Event("%s %s %s", name, op, file)
}
