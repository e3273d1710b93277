-- Which of two daemons wrote: there is one.
DROP TABLE fence;
