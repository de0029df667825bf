// Package shm is the fabric between processes on one host. A READ is a copy
// by the client out of memory it has mapped read-only: no system call, no
// server CPU, no allocation. RPCs go through a memory segment that the two
// processes share, and so do WRITE, CAS and FAA, which the server's agent
// performs: the server's memory is sealed so that a client cannot write it,
// whatever it does, and a client that is stopped in the middle of a WRITE cannot
// finish it after the server has revoked its access. A network's device does that
// work without the server's processor; here it takes some.
//
// # Links
//
// A client process and an endpoint are joined by one link, however many
// connections run over it: a unix socket for control, one shared segment, and
// the client's mappings of the server's regions. Descriptors travel over the
// socket; its end-of-file is how each side learns of the other's death. The
// shared segment has no name, so nothing is left behind when both are killed.
//
//	link segment                             slot of one connection
//	page 0   doorbells: bit per slot,        request area   two header words, body
//	         requests | responses            response area  two header words, body
//	page 1…  slots                           verbs          of WRITEs and atomics
//	                                         results        status, old value
//
// A header word is length<<32 | sequence and is stored after the body; then
// the slot's bit is set in the doorbell of the receiving side. The first header is
// of the message, the second of the verbs or results. A poller scans the words of
// the doorbells in use, so connections without work cost nothing.
//
// The agent, a part of the poller, performs verbs before it takes the request of
// the same slot. It performs them in their order, so all batches are ordered
// except for READs, which wait for the results of what comes before them only
// in a batch that must be ordered.
//
// # Sleeping
//
// A side without work spins while most of its waits end soon: a client for up to
// DefaultSpin, a poller longer, and neither much longer than recent waits took. A
// side that spins yields its core between polls. Another process that waits for the
// core, most often the one that is waited for, runs at once, and a side that spins
// takes no time from others. On an idle core such a poll is a short system call.
// If nothing came, the side announces that it sleeps, looks once more, and sleeps
// in the kernel. A side without work for some milliseconds thus sleeps and uses no
// time, whatever it did before.
// The side that rings a doorbell reads the announcement afterwards, and makes a
// system call only if it finds one. Go's atomics are sequentially consistent, so
// at least one of the two sides sees the other. A server announces its sleep in
// a page that its clients cannot write, and sleeps in epoll on one eventfd of
// each link, so that a client can neither hide nor steal the wake-up of another.
// A client process announces its sleep in a word that its servers can write, and
// sleeps on it with futex; one of the waiting goroutines does that for all
// (hub.go).
//
// # Trust
//
// Only processes of the same user, or root, are connected. Each of them may be
// a client. A data server must prove that it knows the secret of the cluster
// (see [Provider.SetSecret]): the server sends a nonce, and expects a message
// authentication code of it. The server loads lengths, sequence numbers and verbs
// once from shared memory and checks them, and it copies a request before it reads
// the contents. A client that overwrites the segment harms only its own
// connections, and memory that it was granted to change.
//
// Regions are files of fixed size, sealed so that a client can neither write
// them nor make them grow (see package mem).
package shm
