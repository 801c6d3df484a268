package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/larder-io/larder/httpapi/costs"
)

// top is the command that shows the costs of a server's clients.
type top struct {
	of       remote
	query    topQuery
	interval time.Duration
	once     bool
	output   string
}

// topQuery holds the parameters of the request to the server.
type topQuery struct{ by, sort, window string }

func newTop() *cobra.Command {
	var t top
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show how much each client costs the server",
		Long: `Show the CPU time, bytes, requests and watch events of each client of a server, and
refresh the table every few seconds. In a terminal, c, b, r and e sort by these columns;
1 to 5 group by client, user, agent, resource and verb; m, f and s show the last minute,
the last five minutes and all since the start; q quits.

CPU time is elapsed time minus known waits. The sum over all clients never exceeds the
CPU time of the process; the first line shows both.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	fs := cmd.Flags()
	t.of.addTo(fs)
	fs.StringVar(&t.query.by, "by", costs.ByClient.String(), "Group costs by client (user, agent, verb and resource), user, agent, resource or verb.")
	fs.StringVar(&t.query.sort, "sort", costs.CPU.String(), "Sort by cpu, bytes, requests or events, the highest first.")
	fs.StringVar(&t.query.window, "window", costs.LastMinute.String(), "Time window: 1m, 5m, or start, the time since the server started.")
	fs.DurationVar(&t.interval, "interval", 2*time.Second, "How often to ask the server.")
	fs.BoolVar(&t.once, "once", false, "Print once and exit.")
	fs.StringVarP(&t.output, "output", "o", "table", "Output format: table, or json, which prints the server's response on one line each time.")
	return cmd
}

func (t *top) run(cmd *cobra.Command) error {
	switch {
	case t.output != "table" && t.output != "json":
		return fmt.Errorf("--output must be table or json, not %q", t.output)
	case t.interval < 100*time.Millisecond:
		return fmt.Errorf("--interval must be at least 100ms, is %v", t.interval)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := cmd.OutOrStdout()
	if screen, ok := out.(*os.File); ok && !t.once && t.output == "table" && term.IsTerminal(int(screen.Fd())) {
		return t.show(ctx, screen)
	}
	for further := false; ; further = true {
		if err := t.print(ctx, out, further); err != nil || t.once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.interval):
		}
	}
}

// request requests up to rows rows from the server; 0 means all.
func (t *top) request(ctx context.Context, rows int) (*costs.Report, error) {
	var d costs.Report
	query := map[string]string{"by": t.query.by, "sort": t.query.sort, "window": t.query.window, "limit": strconv.Itoa(rows)}
	err := t.of.request(ctx, http.MethodGet, costs.Path, query, &d)
	return &d, err
}

// print prints the server's current costs.
func (t *top) print(ctx context.Context, out io.Writer, further bool) error {
	d, err := t.request(ctx, 0)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case t.output == "json":
		return json.NewEncoder(out).Encode(d)
	}
	text := strings.Join(topTable(d, 0), "\n") + "\n"
	if further {
		text = "\n" + text
	}
	_, err = io.WriteString(out, text)
	return err
}

// Control sequences of terminals.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // switches to the alternate screen and hides the cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// show draws on screen until the user or ctx ends it.
func (t *top) show(ctx context.Context, screen *os.File) error {
	keys, restore, err := readKeys()
	if err != nil {
		return err
	}
	defer restore()
	if _, err := io.WriteString(screen, enterScreen); err != nil {
		return err
	}
	defer io.WriteString(screen, leaveScreen)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	var d *costs.Report
	for due := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case key, ok := <-keys:
			if !ok || !t.handleKey(key) {
				return nil
			}
			due.Reset(0)
			continue
		case <-resized:
		case <-due.C:
			_, height := size(screen)
			current, err := t.request(ctx, max(height, 1))
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil && d == nil:
				return err
			case err == nil:
				d = current
			}
			if err := draw(screen, d, err); err != nil {
				return err
			}
			due.Reset(t.interval)
			continue
		}
		if d != nil {
			if err := draw(screen, d, nil); err != nil {
				return err
			}
		}
	}
}

// draw draws d. If old is not nil, it replaces the first line with the reason why d is old.
func draw(screen *os.File, d *costs.Report, old error) error {
	width, height := size(screen)
	lines := topTable(d, width)
	if old != nil {
		lines[0] = clip("! "+printable(old.Error()), width)
	}
	if len(lines) > height {
		lines = lines[:height]
	}
	_, err := io.WriteString(screen, toTop+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
	return err
}

// size returns the width and height of a terminal.
func size(screen *os.File) (width, height int) {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// handleKey handles a key. It returns false if the key ends the command.
func (t *top) handleKey(key byte) bool {
	const interrupt = 3
	if at := strings.IndexByte("cbre", key); at >= 0 {
		t.query.sort = costs.Kind(at).String()
	}
	if at := strings.IndexByte("12345", key); at >= 0 {
		t.query.by = costs.Dimension(at).String()
	}
	if at := strings.IndexByte("mfs", key); at >= 0 {
		t.query.window = costs.Window(at).String()
	}
	return !slices.Contains([]byte{'q', 'Q', interrupt}, key)
}

// readKeys returns the pressed keys, and a function that stops reading and restores the terminal.
func readKeys() (<-chan byte, func(), error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	raw, err := tty.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, tty.Close())
	}
	var before *term.State
	control := func(change func(fd int) error) error {
		var changeErr error
		return errors.Join(raw.Control(func(fd uintptr) { changeErr = change(int(fd)) }), changeErr)
	}
	if err := control(func(fd int) (err error) { before, err = term.MakeRaw(fd); return err }); err != nil {
		return nil, nil, errors.Join(err, tty.Close())
	}
	keys, ended := make(chan byte), make(chan struct{})
	go func() {
		defer close(keys)
		var key [1]byte
		for {
			if n, err := tty.Read(key[:]); n == 0 || err != nil {
				return
			}
			select {
			case keys <- key[0]:
			case <-ended:
				return
			}
		}
	}()
	return keys, func() {
		close(ended)
		_ = control(func(fd int) error { return term.Restore(fd, before) })
		tty.Close()
		for range keys { // until the goroutine has ended
		}
	}, nil
}
